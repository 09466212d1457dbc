"""Functions that are compiled to machine code when they are first called.

Later runs load the code from a cache. numba takes cached code as up to date if the file of the
function did not change. The code also contains functions and types of other files. So each state of
all such files has a cache folder of its own. It lies beside this module if that may be written,
else where numba puts its caches.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

from numba import njit
from numba.core import config

P = ParamSpec("P")
R = TypeVar("R")

SOURCES = sorted(Path(__file__).parents[2].glob("*/native/*.py"))
"""All files with compiled functions, or with the types of their arguments."""


def cache_folder(base: Path, sources: Iterable[Path]) -> Path:
    """The folder below ``base`` for the code of some files as they are now."""
    state = sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    return base / f"native-{state[:16]}"


_config: Any = config
FOLDER = cache_folder(Path(_config.CACHE_DIR or Path(__file__).parent / "__pycache__"), SOURCES)


@contextmanager
def _cached_in(folder: Path) -> Generator[None]:
    """numba puts caches of functions that are declared now below a folder."""
    before, _config.CACHE_DIR = _config.CACHE_DIR, str(folder)
    try:
        yield
    finally:
        _config.CACHE_DIR = before


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """The function in machine code. Arguments are numbers, arrays, and named tuples of arrays."""
    return _compiled(function, is_inlined=False)


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """The same for a small function, which takes the place of its calls. A call would pass the
    addresses and sizes of all arrays of a named tuple, which takes longer than a small function."""
    return _compiled(function, is_inlined=True)


def _compiled(function: Callable[P, R], *, is_inlined: bool) -> Callable[P, R]:
    # error_model: a division by zero gives inf or nan, as in numpy. Sums keep their order.
    # _nrt: without counts of references, which take most of the time of small functions. Hence
    # compiled functions make no arrays; they only write to those that they are given.
    options: dict[str, Any] = {"cache": True, "error_model": "numpy", "_nrt": False}
    with _cached_in(FOLDER):
        return cast(Callable[P, R], njit(forceinline=is_inlined, **options)(function))
