"""Describe an error in a line for the user."""

from __future__ import annotations

from pcg.errors import UnityError


def words(error: BaseException) -> str:
    """An error in words. If the operating system caused it, its message is used: of a full disk,
    torch's own error says only that a file ends at an unexpected position."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            where = f": {cause.filename}" if cause.filename else ""
            return f"{cause.strerror}{where}"
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, MemoryError):
        return "no memory is left"
    if isinstance(error, UnityError):
        return str(error)
    return f"{type(error).__name__}: {error}"
