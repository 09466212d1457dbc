"""Read and write JSON and TOML files.

Files are checked on load. Any problem of a file becomes one `InputError` that names the file, the
place in it and what was expected. Files are written whole or not at all.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)
from pydantic_core import ErrorDetails

from pcg.errors import InputError

MAX_FILE_BYTES = 32 * 1024 * 1024
"""Larger files are refused. No file of Unity comes near, and reading one could exhaust memory."""

MAX_TOML_BYTES, MAX_TOML_LINE = 256 * 1024, 512
"""Limits of TOML files. The time of tomllib is quadratic in the number of parts of a key."""

_CONTROL = re.compile(
    r"(?<!\\)(?:\\\\)*"  # an escape whose backslash is not escaped itself
    r"\\(?:[bfr]|u00(?:0[0-8bcef]|1[0-9a-f]|7f|[89][0-9a-f])|u20(?:0[b-f]|2[89a-e]|6[0-9a-f]))"
    "|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f]",
    re.IGNORECASE,
)
"""Characters in JSON that control a terminal or are invisible. Line breaks and tabs are allowed."""

_ESCAPED = re.compile(r"\\(?:[bfr]|u....)$", re.IGNORECASE)

_SHOWN_CHARACTERS = 40


class FileModel(BaseModel):
    """Base of the models of files: immutable, no unknown fields, no conversions, finite numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class GrownFileModel(FileModel):
    """Base of models with fields that were added since their schema version. An added field is
    written only if it differs from its default, so other files, and their hashes, stay the same."""

    ADDED: ClassVar[frozenset[str]]
    """The names of the added fields."""

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        same = {name for name in self.ADDED if getattr(self, name) == fields[name].default}
        written: dict[str, Any] = write(self)
        return {name: value for name, value in written.items() if name not in same}


M = TypeVar("M", bound=BaseModel)


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError(f"expected printable characters, got {text[:_SHOWN_CHARACTERS]!r}")
    return text


Name = Annotated[str, Field(max_length=1024), AfterValidator(_printable)]
"""A text that is shown to people, on one line."""


def read_text(path: str | Path, what: str, limit: int | None = None) -> str:
    """Return the text of the file at `path`, which should be `what` (such as "a plan file").

    Raises InputError if it is missing, a directory, unreadable, larger than `limit` (by default
    `MAX_FILE_BYTES`) or not UTF-8.
    """
    where, limit = str(path), limit or MAX_FILE_BYTES
    try:
        with Path(path).open("rb") as file:
            data = file.read(limit + 1)
    except FileNotFoundError:
        raise InputError(where, f"no such file (expected {what})") from None
    except IsADirectoryError:
        raise InputError(where, f"is a directory (expected {what})") from None
    except OSError as error:
        raise InputError(where, f"cannot read {what}: {_reason(error)}") from None
    except ValueError as error:  # a NUL character in the path
        raise InputError(where, f"cannot read {what}: {error}") from None
    if len(data) > limit:
        raise InputError(where, f"larger than {limit >> 20} MiB (expected {what})")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(where, f"byte {error.start} is not UTF-8 (expected {what})") from None


def read_json(path: str | Path, model: type[M], limit: int | None = None) -> M:
    """Return the JSON file at `path` as a `model`.

    Raises InputError if the file cannot be read, is not JSON (a key given twice and NaN are not),
    has control characters or does not fit the model. ``limit``: bytes, as in ``read_text``.
    """
    return parse_json(read_text(path, "a JSON file", limit), str(path), model)


def parse_json(text: str, where: str, model: type[M]) -> M:
    """Return the text of a JSON file as a `model`. Errors call the file ``where``."""
    try:
        json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise InputError(where, f"{place}: not JSON: {_lower_first(error.msg)}") from None
    except ValueError as error:
        raise InputError(where, f"not JSON: {error}") from None
    except RecursionError:
        raise InputError(where, "nested too deeply") from None
    return _validate(where, model, text)


def read_toml(path: str | Path, model: type[M]) -> M:
    """Return the TOML file at `path` as a `model`.

    Raises InputError if the file cannot be read, is not TOML or does not fit the model.
    """
    text = read_text(path, "a TOML file", MAX_TOML_BYTES)
    where = str(path)
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > MAX_TOML_LINE:
            problem = f"line {number}: longer than {MAX_TOML_LINE} characters"
            raise InputError(where, problem)
    try:
        as_json = json.dumps(tomllib.loads(text), default=str)
    except tomllib.TOMLDecodeError as error:
        raise InputError(where, _toml_problem(str(error))) from None
    except ValueError as error:
        raise InputError(where, f"not TOML: {error}") from None
    except RecursionError:
        raise InputError(where, "nested too deeply") from None
    return _validate(where, model, as_json)


def make_folder(folder: Path) -> None:
    """Make a folder for output, before the work for it begins. Raises InputError if it cannot be
    made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = _reason(error) if isinstance(error, OSError) else str(error)
        raise InputError(str(folder), f"cannot be made a folder: {reason}") from None


def check_writable(path: Path) -> None:
    """Make the folder of an output file. Raises InputError if it cannot be made, or if the file is
    a folder."""
    make_folder(path.absolute().parent)
    if path.is_dir():
        raise InputError(str(path), "is a folder, expected a file to write")


def write_text_atomic(path: str | Path, text: str) -> None:
    """Write `text` to the file at `path`, as UTF-8, whole or not at all.

    A new file is completed beside the old one and then takes its place, so that no failure or
    interruption leaves a part. A device or pipe, such as /dev/stdout, is written to directly.
    Raises InputError if the file cannot be written; an old file is then left as it was.
    """
    try:
        data = text.encode("utf-8")
        target = Path(os.path.realpath(path))  # through links: the file changes, the link stays
        if target.exists() and not target.is_file() and not target.is_dir():
            target.write_bytes(data)
            return
        _replace(target, data)
    except OSError as error:
        raise InputError(str(path), f"cannot write: {_reason(error)}") from None
    except ValueError as error:  # a NUL character in the path, half a surrogate pair in the text
        raise InputError(str(path), f"cannot write: {error}") from None


def _replace(target: Path, data: bytes) -> None:
    """Put a file that holds `data` in the place of `target`; leave nothing behind on failure."""
    temporary = target.with_name(f".unity-{secrets.token_hex(8)}.tmp")
    try:
        # Mode "x" keeps the user's umask, which the functions of tempfile override.
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            temporary.chmod(target.stat().st_mode & 0o7777)
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _validate(where: str, model: type[M], text: str) -> M:
    """Return JSON `text` as a `model`; JSON, because strict models then take arrays as tuples."""
    if (control := _CONTROL.search(text)) is not None:
        # A TOML file of several lines has become one line of JSON.
        before = text.count("\n", 0, control.start())
        place = f"line {before + 1}: " if "\n" in text.strip() else ""
        escaped = _ESCAPED.search(control.group())
        code = ord(json.loads(f'"{escaped.group()}"') if escaped else control.group())
        raise InputError(where, f"{place}has the control character U+{code:04X}")
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        problem = validation_problem(error)
    raise InputError(where, problem)


def validation_problem(error: ValidationError) -> str:
    """Return the first of the errors in a line, and how many more there are."""
    first, *others = error.errors(include_url=False)
    more = f" (and {len(others)} more error{'s' if len(others) > 1 else ''})" if others else ""
    return f"{_describe(first)}{more}"


def _describe(error: ErrorDetails) -> str:
    """Return one line for an error of pydantic: the place, what was expected, what was there."""
    kind = error["type"]
    if kind == "json_invalid":  # json.loads took it, so this is the stricter limit on nesting
        return "nested too deeply" if "recursion" in error["msg"] else _lower_first(error["msg"])
    place = f"at {_place(error['loc'])}: " if error["loc"] else ""
    if kind == "missing":
        return f"{place}missing"
    if kind == "extra_forbidden":
        return f"{place}unknown field"
    message = error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if not message.startswith("Input should be "):
        return f"{place}{_lower_first(message)}"
    expected = message.removeprefix("Input should be ").replace("a valid ", "")
    return f"{place}expected {expected}, got {_shown(error['input'])}"


def _place(location: Sequence[int | str]) -> str:
    """Return a place in a document as a user writes it, such as "steps[2].degree"."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return "".join(parts).removeprefix(".")


def _shown(value: object) -> str:
    """Return a short text for a value that should not have been there."""
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list):
        return f"a list of {len(cast(list[object], value))}"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


def _toml_problem(message: str) -> str:
    """Return tomllib's message, "Invalid value (at line 3, column 7)", with the place first."""
    match = re.fullmatch(r"(?s)(.*) \(at (.*)\)", message)
    if match is None:
        return f"not TOML: {_lower_first(message)}"
    return f"{match[2]}: not TOML: {_lower_first(match[1])}"


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse an object that gives a key twice: JSON would silently keep the last one."""
    result = dict(pairs)
    if len(result) == len(pairs):
        return result
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise ValueError(f"key {_shown(key)} is given twice")
        seen.add(key)
    return result


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _reason(error: OSError) -> str:
    return _lower_first(error.strerror or str(error))


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
