"""Describe an error in a line for the user."""

from __future__ import annotations

from pcg.errors import UnityError


def words(error: BaseException) -> str:
    """What has happened; of the system's errors in its words, for torch's writer tells of a full
    disk as of a file whose end is not where it was expected."""
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
