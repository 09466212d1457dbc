"""Records how tensors were concatenated. A split undoes the last concat along its axis."""

from __future__ import annotations

from dataclasses import dataclass

from pcg.language.poly import Poly
from substitutions.importers.imported import IllTypedError
from substitutions.importers.sizes import KnownSizes


@dataclass(frozen=True)
class Rescaling:
    """A change of a dimension after a concat: its size was multiplied or divided by ``by``."""

    by: Poly
    divides: bool = False


ConcatPiece = tuple[Poly, "Concat | None"]
"""A piece of a concat: its size, and the last concat along the same axis before."""


@dataclass(frozen=True)
class Concat:
    """The last concat along an axis: its pieces, and the changes of the dimension since."""

    pieces: tuple[ConcatPiece, ...]
    steps: tuple[Rescaling, ...] = ()


def changed(concat: Concat | None, *steps: Rescaling) -> Concat | None:
    """The concat with further changes."""
    return None if concat is None else Concat(concat.pieces, (*concat.steps, *steps))


def common(known: KnownSizes, a: Concat | None, b: Concat | None) -> Concat | None:
    """The concat of an element-wise result of two tensors of equal sizes. If only one tensor has a
    concat, it is that one. None if the concats are at different places."""
    if a is None or b is None or a is b:
        return a or b
    sizes = [[known.resolve(size) for size, _ in concat.pieces] for concat in (a, b)]
    if sizes[0] != sizes[1] or a.steps != b.steps:
        return None
    inner = tuple(
        (size, common(known, x, y)) for (size, x), (_, y) in zip(a.pieces, b.pieces, strict=True)
    )
    return Concat(inner, a.steps)


def pieces(known: KnownSizes, concat: Concat | None, count: int) -> tuple[ConcatPiece, ...]:
    """The pieces that a split in ``count`` returns. Raises IllTypedError if there is no concat of
    so many pieces to undo."""
    if concat is None:
        raise IllTypedError("no concat along this dimension that a split could undo")
    if len(concat.pieces) != count:
        raise IllTypedError(f"{count} pieces of a concat of {len(concat.pieces)}")
    return tuple(_piece(known, piece, concat.steps) for piece in concat.pieces)


def _piece(known: KnownSizes, piece: ConcatPiece, steps: tuple[Rescaling, ...]) -> ConcatPiece:
    size, inner = piece
    for step in steps:
        size = known.divide(size, step.by, "piece") if step.divides else size * step.by
    return size, changed(inner, *steps)
