"""The console on which commands print tables and bars. Help and mistakes do not load it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from pcg.errors import printable
from unity.support.cli import QUIET


class PlainConsole(Console):
    """A console that shows text as it is. Text is not markup, and control characters are escaped
    (`printable`). All commands print with it or with `say`. Both obey --quiet."""

    def __init__(self, *, stderr: bool = False, file: IO[str] | None = None) -> None:
        super().__init__(stderr=stderr, file=file, quiet=QUIET.get(), markup=False, emoji=False)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Segments of text. Only their styles become control characters."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(printable(text), style)
