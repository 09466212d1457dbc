"""A table of public models. It can be resumed. By default each model has a process of its own, and
no model stops the table."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from support.public.planned import Row, as_data, from_data, headings, line

from pcg.errors import UnityError

Measure = Callable[[argparse.Namespace], Row]
"""The line of the one model that the arguments name. Raises UnityError if it is refused."""


@dataclass(frozen=True)
class Table:
    """The table that a script prints. ``script``: its path, which measures one model with
    ``--alone``. ``given``: the arguments of its command. ``together``: measures one model in this
    process, and is used instead if it is given."""

    script: str
    given: argparse.Namespace
    together: Measure | None = None

    def printed(self, models: Iterable[tuple[str, str]]) -> bool:
        """Print a line for each model and way to compute attention. Returns whether all keep the
        promises."""
        print(headings(tuple(self.given.nodes)), flush=True)
        passes = [self._shown(name, attention) for name, attention in models]
        return all(passes)

    def _shown(self, name: str, attention: str) -> bool:
        row = self._earlier(name, attention) or self._measured(name, attention)
        if isinstance(row, str):
            print(line(name, attention or "-", row), flush=True)
            return False
        print(row.text, flush=True)
        return row.holds

    def _earlier(self, name: str, attention: str) -> Row | None:
        """The line in the file of results, if it has these numbers of nodes."""
        results: Path | None = self.given.results
        if results is None or not results.exists():
            return None
        rows = [from_data(json.loads(text)) for text in results.read_text("utf-8").splitlines()]
        same = [r for r in rows if (r.name, r.attention) == (name, attention)]
        wanted = [str(nodes) for nodes in self.given.nodes]
        return next((r for r in reversed(same) if list(r.gained) == wanted), None)

    def _measured(self, name: str, attention: str) -> Row | str:
        """The line of a model, or why there is none. New lines go to the file of results."""
        if self.together is None:
            row = self._asked(name, attention)
        else:
            row = self._here(self.together, name, attention)
        if self.given.results is not None and not isinstance(row, str):
            with self.given.results.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(as_data(row))}\n")
        return row

    def _here(self, measure: Measure, name: str, attention: str) -> Row | str:
        """The line of a model that is measured in this process."""
        own = {"names": [name], "attention": attention}
        given = argparse.Namespace(**{**vars(self.given), **own})
        data = _data(lambda: measure(given))
        return f"refused: {data['refused']}" if "refused" in data else from_data(data)

    def _asked(self, name: str, attention: str) -> Row | str:
        """The line of a model that is measured in a process of its own."""
        given = self.given
        options = ["--alone", "--budget", str(given.budget), "--nodes", *map(str, given.nodes)]
        options += ["--attention", attention] if attention else []
        command = [sys.executable, self.script, name, *options]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=given.limit)
        except subprocess.TimeoutExpired:
            return f"took longer than {given.limit:g} seconds"
        if done.returncode:
            return f"failed: {done.stderr.splitlines()[-1:]}"
        data = json.loads(done.stdout.splitlines()[-1])
        if "refused" in data:
            return f"refused: {data['refused']}"
        return from_data(data)


def arguments(budget: float, limit: float) -> argparse.ArgumentParser:
    """The options of every such script, with its own defaults."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="models, packages or PACKAGE/MODEL")
    parser.add_argument("--nodes", type=int, nargs="*", default=[1, 4], help="none: no planning")
    parser.add_argument("--budget", type=float, default=budget, help="seconds of a search")
    parser.add_argument("--limit", type=float, default=limit, help="seconds of a model")
    parser.add_argument("--results", type=Path, help="a file of measured lines, to go on from")
    parser.add_argument("--alone", action="store_true", help="one model, in this process, as JSON")
    return parser


def print_measured(measured: Callable[[], Row]) -> None:
    """Print the line of one model as JSON, or why it is refused."""
    print(json.dumps(_data(measured)))


def _data(measured: Callable[[], Row]) -> Mapping[str, Any]:
    """The line of one model as data, or why it is refused."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    try:
        return as_data(measured())
    except UnityError as error:
        return {"refused": str(error)}
