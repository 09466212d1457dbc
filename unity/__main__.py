"""The console command `unity`. It hands over to the module of the given command."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

from pcg.errors import InputError
from unity.support.cli import run_app, run_command, say
from unity.support.commands import COMMANDS
from unity.support.completion import ASKED, complete, print_script


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process. ``arguments``: by default those of the process."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = given[0] if given else "--help"
    if ASKED in os.environ:
        complete()
    if command in COMMANDS:
        # Import only this command: help needs none of the others.
        run_app(import_module(f"unity.{command}").app, command, given[1:])
    run_command(lambda: _answer(command, given[1:]))


def _answer(command: str, rest: Sequence[str]) -> None:
    """Answer options and mistakes in the place of a command."""
    if command in ("-h", "--help"):
        say(_help())
    elif command == "--version":
        say(f"unity {_version()}")
    elif command == "--completion":
        print_script(rest)
    else:
        raise InputError(command, f"no such command (expected one of {', '.join(COMMANDS)})")


def _help() -> str:
    lines = [f"  {name:<10}{text}" for name, text in COMMANDS.items()]
    options = [
        "  --version             Print the version",
        "  --completion SHELL    Print a script that completes commands and options",
    ]
    head, tail = (
        "Usage: unity COMMAND [OPTIONS] ...",
        "unity COMMAND --help shows the options of a command.",
    )
    return "\n".join([head, "", "Commands:", *lines, "", "Options:", *options, "", tail])


def _version() -> str:
    try:
        return version("unity")
    except PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    main()
