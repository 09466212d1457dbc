"""How a command is declared, prints and ends.

A command module, such as `unity/optimize.py`, runs both as `python -m unity.optimize` and as
`unity optimize`:

    @dataclass(frozen=True)
    class Options:
        \"\"\"Find the fastest plan for MODEL.\"\"\"

        model: str
        machine: Annotated[str, typer.Option(help="...")] = "local"

    app = app_of(Options, "unity.commands.optimize")  # its run(options) does the work

    if __name__ == "__main__":
        run_app(app, "optimize")

Exit status: 0 done, 1 a negative answer, 2 unusable input or usage, 130 interrupted.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from importlib import import_module
from inspect import Parameter, signature
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, NoReturn, cast

import typer

from pcg.collection import uncollected_at_exit
from pcg.errors import InputError, UnityError, one_line, printable

Misuse = cast(type[typer.BadParameter], typer.BadParameter.__bases__[0])
"""The base class of what typer raises for mistakes in options and arguments. Typer exports only a
subclass."""

QUIET: ContextVar[bool] = ContextVar("quiet", default=False)
"""Whether a command prints errors, warnings and JSON only."""

INTERRUPTED = 130
"""Exit status after Ctrl-C, by the shells' convention: 128 + SIGINT."""


def say(text: str, *, error: bool = False) -> None:
    """Print text on the standard output, unless the command is quiet. With ``error``, print it on
    the standard error in any case."""
    if error or not QUIET.get():
        _print(text, error=error)


def say_json(content: Any, *, indent: int | None = 1) -> None:
    """Print a result as JSON: on several lines, or on one if `indent` is None."""
    _print(json.dumps(content, indent=indent))


def _print(text: str, *, error: bool = False) -> None:
    print(printable(text), file=sys.stderr if error else sys.stdout, flush=True)


def _silence(quiet: bool) -> bool:
    QUIET.set(quiet)
    return quiet


def _configure(context: typer.Context, path: Path | None) -> Path | None:
    """Take options that are not given from a file."""
    if path is not None:
        options = import_module("unity.support.config").options_of
        context.default_map = options(path, context.command.name, context.command.params)
    return path


Config = Annotated[
    Path | None,
    typer.Option(
        is_eager=True,
        callback=_configure,
        help="A TOML file with options, in a table named like the command. Options on the command"
        " line win.",
    ),
]
Quiet = Annotated[
    bool,
    typer.Option("-q", "--quiet", callback=_silence, help="Print errors, warnings and JSON only."),
]
COMMON = {"config": (Config, None), "quiet": (Quiet, False)}
"""The options of all commands, each with its default. Commands do not see them."""


def app_of(options: type[Any], module: str, *, epilog: str | None = None) -> typer.Typer:
    """Return an application of one command. It hands its options to the function `run` of a module.

    `options`: a dataclass. Its fields are declared like parameters of a command, and its docstring
    is the help. The module is imported only when the command runs, because help and mistakes do not
    need it.
    """

    def command(**given: Any) -> None:
        own = {name: value for name, value in given.items() if name not in COMMON}
        import_module(module).run(options(**own))

    command.__doc__ = options.__doc__
    whole = signature(options, eval_str=True)
    more = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in COMMON.items()
    ]
    whole = whole.replace(parameters=[*whole.parameters.values(), *more])
    setattr(command, "__signature__", whole)  # noqa: B010 for pyright
    # Plain help and errors: boxes would break an error message over several lines.
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(module.rpartition(".")[2], epilog=epilog)(command)
    return app


def run_command(main: Callable[[], int | None]) -> NoReturn:
    """Run `main` and end the process with its status (None: 0).

    A `UnityError` becomes one line on the standard error, and the status that it carries. Any other
    exception is a fault of Unity and passes through with its traceback.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by a shell, as in `unity ... >&-`
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(
            stream, TextIOWrapper
        ):  # or a letter that the encoding lacks would end the process
            stream.reconfigure(errors="backslashreplace")
    uncollected_at_exit()
    try:
        status = main() or 0
        sys.stdout.flush()
    except UnityError as error:
        say(f"unity: error: {one_line(str(error))}", error=True)
        sys.exit(error.exit_status)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader of the output has left, as in `unity ... | head`. Python would try to flush the
        # rest at exit and complain, so point the output elsewhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    sys.exit(status)


def run_app(app: typer.Typer, name: str, arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command `name`, declared by `app`, and end the process with its status.

    `arguments`: those of the command. Default: those of the process.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    run_command(lambda: _run(app, name, given))


def _run(app: typer.Typer, name: str, given: Sequence[str]) -> int | None:
    """Run a command. Return its status if it ends early, as with --help. Raises InputError for
    wrong arguments."""
    try:
        # In its standalone mode typer ends the process itself, with several lines for a mistake.
        return app(given, prog_name=f"unity {name}", standalone_mode=False)
    except Misuse as error:
        problem = error.format_message()
        raise InputError(name, problem[:1].lower() + problem[1:].removesuffix(".")) from None
