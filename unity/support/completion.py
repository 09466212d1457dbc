"""Completion of commands and options in a shell.

The shell calls `unity` with the typed words in environment variables, and typer answers. Only the
module of the typed command is imported, because an answer has to come at once.
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
"""The environment variable with the question of a shell. It is set only while a shell asks."""

SHELLS = ("bash", "zsh", "fish")

_TYPED = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")
"""The environment variables with the typed words."""


def complete() -> NoReturn:
    """Answer a shell, and end the process."""
    words = {word for name in _TYPED for word in os.environ.get(name, "").split()}
    group = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    for name, text in COMMANDS.items():
        group.command(name, help=text)(_function(name) if name in words else _nothing)
    group(prog_name="unity")
    raise AssertionError("typer ends the process")


def print_script(given: Sequence[str]) -> NoReturn:
    """Print the script that a shell evaluates at its start, and end the process. Raises InputError
    unless one known shell is given."""
    if len(given) != 1 or given[0] not in SHELLS:
        shown = " ".join(given) or "nothing"
        raise InputError("--completion", f"expected one of {', '.join(SHELLS)}, got {shown}")
    os.environ[ASKED] = f"source_{given[0]}"
    complete()


def _function(name: str) -> Callable[..., Any]:
    """Return the function of a command. Its parameters are the options."""
    (command,) = import_module(f"unity.{name}").app.registered_commands
    return command.callback


def _nothing() -> None:
    """Stand in for a command that was not typed."""
