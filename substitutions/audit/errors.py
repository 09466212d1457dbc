"""The results of an audit: a step that does not follow, and a finding with its place in a plan."""

from __future__ import annotations

from dataclasses import dataclass


class Refused(Exception):
    """A step that does not follow; the text says what was found and what was expected."""


@dataclass(frozen=True)
class Finding:
    """Something in a plan that does not follow. ``where``: the place in the file. ``what``: what is
    there, and what was expected."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"
