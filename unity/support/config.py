"""Options of commands in a TOML file, in place of the same flags given each time.

    [optimize]
    machine = "summit"
    nodes = 2
    allow = "data,model"

    [run]
    steps = 1000

A key is a flag's long name or an argument's name, with `-` or `_`. A flag that is given wins over
the file. A path is taken from the working directory, as that of a flag is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Protocol

from pydantic import ConfigDict, RootModel

from pcg.errors import InputError
from pcg.files import Name, read_toml
from unity.support.commands import COMMANDS


class ConfigFile(RootModel[dict[Name, dict[Name, Any]]]):
    """Tables by command, each with its options."""

    model_config = ConfigDict(frozen=True)


class Parameter(Protocol):
    """A flag or an argument, as typer has it. ``opts``: its names; ``secondary_opts``: those that
    turn it off."""

    name: str
    opts: list[str]
    secondary_opts: list[str]


def options_of(path: Path, command: str, parameters: Iterable[Parameter]) -> dict[str, Any]:
    """What a file says of a command's parameters, by their names, to be read as flags are.

    Raises InputError where the file is no such file, has a table that is no command's, a key that
    is no option, or several values of an option that has one.
    """
    tables = read_toml(path, ConfigFile).root
    for table in tables:
        _check_known(f"{path}: [{table}]", "command", table, COMMANDS)
    known = {key: parameter for parameter in parameters for key in _keys(parameter)}
    del known["config"]
    options: dict[str, Any] = {}
    for given, value in tables.get(command, {}).items():
        key, where = given.replace("_", "-"), f"{path}: [{command}] {given}"
        _check_known(where, "option", key, known)
        parameter = known[key]
        if parameter.name in options:
            raise InputError(where, "is given twice, by other names")
        options[parameter.name] = _value(where, parameter, value)
    return options


def _keys(parameter: Parameter) -> Iterator[str]:
    """An argument's name, or the long names of a flag: those that turn it off if it has no
    others."""
    for name in parameter.opts or parameter.secondary_opts:
        if name.startswith("--") or not name.startswith("-"):
            yield name.lstrip("-").replace("_", "-")


def _check_known(where: str, what: str, name: str, known: Iterable[str]) -> None:
    if name not in known:
        near = get_close_matches(name, known, 1)
        hint = f", did you mean {near[0]}?" if near else ""
        raise InputError(where, f"no such {what}{hint}")


def _value(where: str, parameter: Parameter, value: object) -> Any:
    """A value as a flag's would be: text, which is read as on the command line, or whether a flag
    is there."""
    if getattr(parameter, "multiple", False):
        return [_text(where, item) for item in (value if isinstance(value, list) else (value,))]
    if isinstance(value, bool) and getattr(parameter, "is_flag", False):
        return value if parameter.opts else not value
    return _text(where, value)


def _text(where: str, value: object) -> str:
    if not isinstance(value, str | int | float):
        several = "several values" if isinstance(value, list) else "a table"
        raise InputError(where, f"{several}, expected text, a number, true or false")
    return str(value).lower() if isinstance(value, bool) else str(value)
