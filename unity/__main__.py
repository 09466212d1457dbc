"""The console command `unity`: hands over to the module of the command that was asked for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

from pcg.errors import InputError
from unity.support.cli import run_app, run_command, say

COMMANDS = {
    "optimize": "Find the fastest plan to train a model on a machine",
    "compare": "Compare planners by predicted throughput",
    "generate": "Generate and prove the library of substitutions",
    "verify": "Prove or refute substitutions",
    "recheck": "Check certificates of proofs with other solvers",
    "audit": "Check that a plan follows from its model by proved rules",
    "simulate": "Predict the step of a plan, with a timeline",
    "explain": "Say why operators of a plan are placed as they are",
    "diff": "Say how two plans of a model differ, and what it is worth",
    "report": "Write a page about a plan, for a browser",
    "profile": "Measure this machine for the cost model",
    "run": "Train by a plan",
    "export": "Write the weights of a checkpoint as a plain state dict",
}
"""Each command with its help; its module is `unity.<command>`, which holds a typer `app`."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line (that of the process by default) and end the process."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = given[0] if given else "--help"
    if command in COMMANDS:
        # Imported only now, and only the one: help needs none of the others.
        run_app(import_module(f"unity.{command}").app, command, given[1:])
    run_command(lambda: _answer(command))


def _answer(command: str) -> None:
    """Answer what is no command: the options, and mistakes."""
    if command in ("-h", "--help"):
        say(_help())
    elif command == "--version":
        say(f"unity {_version()}")
    else:
        raise InputError(command, f"no such command (expected one of {', '.join(COMMANDS)})")


def _help() -> str:
    lines = [f"  {name:<10}{text}" for name, text in COMMANDS.items()]
    head, tail = "Usage: unity COMMAND [OPTIONS] ...", "unity COMMAND --help tells more."
    return "\n".join([head, "", "Commands:", *lines, "", tail])


def _version() -> str:
    try:
        return version("unity")
    except PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    main()
