"""Completion of commands and options in a shell.

The shell calls `unity` with what was typed in environment variables, and typer answers. Only the
module of the command that was typed is imported: an answer has to come at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NoReturn

import typer

from pcg.errors import InputError
from unity.support.commands import COMMANDS

ASKED = "_UNITY_COMPLETE"
"""The variable in which a shell says what it asks; set only then."""

SHELLS = ("bash", "zsh", "fish")

_TYPED = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")
"""The variables in which shells say what was typed."""


def complete() -> NoReturn:
    """Answer a shell, and end the process."""
    words = {word for name in _TYPED for word in os.environ.get(name, "").split()}
    group = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    for name, text in COMMANDS.items():
        group.command(name, help=text)(_function(name) if name in words else _nothing)
    group(prog_name="unity")
    raise AssertionError("typer ends the process")


def print_script(given: Sequence[str]) -> NoReturn:
    """Print the script that a shell is to evaluate at its start, and end the process. Raises
    InputError where no shell that is known is named."""
    if len(given) != 1 or given[0] not in SHELLS:
        shown = " ".join(given) or "nothing"
        raise InputError("--completion", f"expected one of {', '.join(SHELLS)}, got {shown}")
    os.environ[ASKED] = f"source_{given[0]}"
    complete()


def _function(name: str) -> Callable[..., Any]:
    """The function of a command, whose parameters are its options."""
    (command,) = import_module(f"unity.{name}").app.registered_commands
    return command.callback


def _nothing() -> None:
    """Stands for the commands that were not typed."""
