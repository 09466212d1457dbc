"""A program that does not fit its plan is refused: by `unity run` before any process starts, and by
`unity audit`, with a line that names the rank, the instruction and the expected one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.plans.run_plans import refused, write_plan
from typer.testing import CliRunner

from pcg.errors import NegativeAnswer
from runtime.program.lower import Lowering
from runtime.program.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Exchange,
    Program,
    ReduceScatter,
)
from unity.audit import app


@pytest.fixture
def mistaken(monkeypatch):
    """A lowering in which rank 1 forgets its first communication."""
    programs = Lowering.programs

    def changed(self, ranks=None):
        return [_mistaken(program) for program in programs(self, ranks)]

    monkeypatch.setattr(Lowering, "programs", changed)


def _mistaken(program: Program) -> Program:
    kinds = AllReduce | AllGather | ReduceScatter | AllToAll | Exchange
    first = next(i for i in program.instructions if isinstance(i, kinds))
    rest = tuple(i for i in program.instructions if i is not first or program.rank != 1)
    return replace(program, instructions=rest)


def test_run_with_a_wrong_program_starts_no_process(tmp_path, capsys, monkeypatch, mistaken):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr("unity.commands.run.launch", lambda *_, **__: pytest.fail("started"))
    path = write_plan(tmp_path, 2)
    status, line = refused(capsys, path)
    assert status == 1
    assert line.startswith(f"unity: error: {path}: rank 0: t5.1 = exchange(t5): ")
    assert line.endswith("never ends, expected the other end at rank 1")


def test_audit_finds_a_wrong_program(tmp_path, mistaken):
    path = write_plan(tmp_path, 2)
    result = CliRunner().invoke(app, [str(path), "--no-proofs", "--no-capture"])
    assert result.exit_code == 1 or isinstance(result.exception, NegativeAnswer)
    assert f"{path}: rank 0: t5.1 = exchange(t5): " in result.output


def test_an_audit_says_what_it_checked(tmp_path):
    path = write_plan(tmp_path, 2)
    result = CliRunner().invoke(app, [str(path), "--no-proofs", "--no-capture"])
    assert "checked: the programs of 2 ranks: each piece once" in result.output
