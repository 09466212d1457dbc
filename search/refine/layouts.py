"""Layouts by number.

Problem: an operator may run on any devices, so a search meets the same layout on many of them.
Method: a layout is a shape, whose lowest device is 0, at the number of its lowest device. Moving it
to other devices keeps the shape. A layout is made only where one is asked for. Exact: equal layouts
have one number.
"""

from __future__ import annotations

from collections.abc import Sequence

from pcg.memo import Answers, Numbering
from pcg.placement.layout import Layout, moved_by

PlacedShape = tuple[int, int]
"""The number of a shape, and the lowest device."""


class NumberedLayouts:
    """The layouts that occurred."""

    def __init__(self) -> None:
        self._shapes, self._places = Numbering[Layout](), Numbering[PlacedShape]()
        self.number = Answers(self._number)
        """The number of a layout."""
        self.layout = Answers(self._layout)
        """The layout with a number."""
        self.moved = Answers(self._moved)
        """The number of a layout, given by its number, on devices whose numbers are higher by some
        number."""

    @property
    def shapes(self) -> Sequence[Layout]:
        """All shapes by number."""
        return self._shapes.every

    @property
    def places(self) -> Sequence[PlacedShape]:
        """The shape and the lowest device of each layout, by number."""
        return self._places.every

    def _number(self, layout: Layout) -> int:
        start = layout.devices[0]
        return self._places[self._shapes[moved_by(layout, -start)], start]

    def _layout(self, number: int) -> Layout:
        shape, start = self._places.every[number]
        return moved_by(self._shapes.every[shape], start)

    def _moved(self, layout_by: tuple[int, int]) -> int:
        layout, by = layout_by
        shape, start = self._places.every[layout]
        return self._places[shape, start + by]
