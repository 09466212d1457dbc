"""Certificates of many rules in one compressed file.

Format: lines of JSON, compressed with xz. First a header, then each script of a side condition
once, then each certificate. Rules share scripts, theorems and definitions, so a bundle takes a
hundredth of the space of the same certificates in a folder. ``verifier.recheck`` reads both.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import Field, ValidationError

from pcg.errors import InputError
from pcg.files import MAX_FILE_BYTES, FileModel, validation_problem
from verifier.certificate import FOOTER, HEADER, Certificate, CertificateFile, script_name

M = TypeVar("M", bound=FileModel)


class BundleHeader(FileModel):
    """The first line. ``scripts`` and ``certificates``: the numbers of lines of each kind."""

    schema_version: Literal[1]
    scripts: int = Field(ge=0)
    certificates: int = Field(ge=0)


class ScriptLine(FileModel):
    """A script without the first and last line, which all scripts share."""

    condition: str


@dataclass(frozen=True)
class Bundle:
    """Certificates, and the scripts that they name."""

    certificates: tuple[CertificateFile, ...]
    scripts: Mapping[str, str]


def bundle_text(certificates: Iterable[Certificate]) -> str:
    """The lines of a bundle. Scripts are sorted, and each is written once."""
    listed = list(certificates)
    scripts = {name: text for certificate in listed for name, text in certificate.scripts.items()}
    header = BundleHeader(schema_version=1, scripts=len(scripts), certificates=len(listed))
    # Sorted by text, scripts with equal beginnings are adjacent and compress well.
    conditions = sorted(t.removeprefix(HEADER).removesuffix(FOOTER) for t in scripts.values())
    lines: list[FileModel] = [header, *(ScriptLine(condition=c) for c in conditions)]
    lines += [certificate.file for certificate in listed]
    return "".join(line.model_dump_json() + "\n" for line in lines)


def write_bundle(path: Path, certificates: Iterable[Certificate]) -> None:
    """Write a bundle, whole or not at all. Raises InputError if it cannot be written."""
    data = lzma.compress(bundle_text(certificates).encode(), preset=9 | lzma.PRESET_EXTREME)
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError as error:
        raise InputError(str(path), f"cannot write: {error.strerror}") from None
    finally:
        part.unlink(missing_ok=True)


def read_bundle(path: Path) -> Bundle:
    """Read a bundle. Raises InputError with the number of the line that is wrong."""
    lines = _unpacked(path).split("\n")
    if lines.pop():
        raise InputError(str(path), f"line {len(lines) + 1}: ends too early")
    header = _line(path, lines, 0, BundleHeader)
    first = 1 + header.scripts
    if len(lines) != first + header.certificates:
        raise InputError(str(path), f"{len(lines)} lines, expected {first + header.certificates}")
    conditions = (_line(path, lines, i, ScriptLine).condition for i in range(1, first))
    scripts = {script_name(c): f"{HEADER}{c}{FOOTER}" for c in conditions}
    files = (_line(path, lines, i, CertificateFile) for i in range(first, len(lines)))
    return Bundle(tuple(files), scripts)


def _unpacked(path: Path) -> str:
    """The text of a compressed file. Raises InputError if it is too large, or no such file."""
    where, what = str(path), "compressed certificates"
    try:
        with lzma.open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise InputError(where, f"larger than {MAX_FILE_BYTES >> 20} MiB unpacked")
        return data.decode()
    except (lzma.LZMAError, EOFError) as error:
        raise InputError(where, f"not an xz file (expected {what}): {error}") from None
    except UnicodeDecodeError as error:
        raise InputError(where, f"byte {error.start} is not UTF-8 (expected {what})") from None
    except OSError as error:
        raise InputError(where, f"cannot read {what}: {error.strerror}") from None


def _line(path: Path, lines: list[str], number: int, model: type[M]) -> M:
    try:
        return model.model_validate_json(lines[number] if number < len(lines) else "")
    except ValidationError as error:
        raise InputError(str(path), f"line {number + 1}: {validation_problem(error)}") from None
