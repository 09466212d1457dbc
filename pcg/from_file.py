"""Import users' Python files as modules that other processes can import by name.

A class from a file that is given by its path needs an importable module. Workers of a DataLoader,
unless they are forked, receive a dataset as a pickle, which names its class and module. So the name
of such a module contains the path, this module is its package, and importing the name runs the
file.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

__path__: list[str] = []
"""Makes this module a package."""
_SIGN = "_in_"
"""Separates the module's own name from the encoded path of its file."""


def module_of(path: Path, prefix: str) -> ModuleType:
    """Run a file as a module. ``prefix`` says what it is for. Passes on what the file raises."""
    absolute = path.absolute()
    spec = _spec(f"{__name__}.{prefix}_{path.stem}{_SIGN}{str(absolute).encode().hex()}", path)
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and the like look their module up
    assert spec.loader is not None, "it has one"
    spec.loader.exec_module(module)
    return module


class _Finder(MetaPathFinder):
    """Finds the file of a user's module by the module's name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{__name__}."):
            return None
        _, sign, place = fullname.rpartition(_SIGN)
        try:
            file = Path(bytes.fromhex(place).decode()) if sign else None
        except ValueError:
            return None
        return _spec(fullname, file) if file is not None and file.is_file() else None


def _spec(name: str, path: Path) -> ModuleSpec:
    spec = spec_from_loader(name, SourceFileLoader(name, str(path)))
    assert spec is not None, "of a loader there always is one"
    return spec


sys.meta_path.append(_Finder())
