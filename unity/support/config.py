"""Options of commands in a TOML file.

    [optimize]
    machine = "summit"
    nodes = 2
    allow = "data,model"

    [run]
    steps = 1000

A key is the long name of an option or the name of an argument, with `-` or `_`. An option on the
command line wins over the file. Paths are relative to the working directory.
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
    """A table of options for each command."""

    model_config = ConfigDict(frozen=True)


class Parameter(Protocol):
    """An option or an argument, as typer has it. ``opts``: its names. ``secondary_opts``: the names
    that turn it off."""

    name: str
    opts: list[str]
    secondary_opts: list[str]


def options_of(path: Path, command: str, parameters: Iterable[Parameter]) -> dict[str, Any]:
    """Return the values that a file gives to the parameters of a command, by parameter name.

    Raises InputError if the file is not TOML, if a table is not named like a command, if a key is
    not an option, or if an option with one value is given several.
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
            raise InputError(where, "gives an option again, expected it once")
        options[parameter.name] = _value(where, parameter, value)
    return options


def _keys(parameter: Parameter) -> Iterator[str]:
    """The name of an argument, or the long names of an option. An option that can only be turned
    off has the names that do so."""
    for name in parameter.opts or parameter.secondary_opts:
        if name.startswith("--") or not name.startswith("-"):
            yield name.lstrip("-").replace("_", "-")


def _check_known(where: str, what: str, name: str, known: Iterable[str]) -> None:
    if name not in known:
        near = get_close_matches(name, known, 1)
        hint = f", did you mean {near[0]}?" if near else ""
        raise InputError(where, f"no such {what}{hint}")


def _value(where: str, parameter: Parameter, value: object) -> Any:
    """A value as typer expects it: text, which is read as on the command line, or a Boolean for a
    flag."""
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
