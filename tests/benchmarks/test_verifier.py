"""The time to decide rules: `make bench`.

The foreign rules are made here, in the schema and of the kind that FlexFlow publishes: chains of
moves in two orders, and a linear layer with moves before or after it. Files named in the
environment variable RULE_FILES, separated by colons, are measured as well.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import permutations, product
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

import pytest
from support.paths import ROOT

from substitutions.importers.flexflow import import_rule
from substitutions.importers.imported import IllTypedError
from substitutions.importers.schema import ForeignRule, read_foreign
from substitutions.rules.store import default_path

RULES = 700
MOVES = [
    *((f"OP_{name}", dim) for name in ("REPLICATE", "REDUCE") for dim in range(3)),
    *((f"OP_{name}", dim) for name in ("PARTITION", "COMBINE") for dim in (1, 2)),
    ("OP_RELU", None),
]
Chain = tuple[tuple[str, int | None], ...]


def _operator(name: str, dim: int | None, *inputs: int) -> dict[str, Any]:
    values = {} if dim is None else {"PM_PARALLEL_DIM": dim, "PM_PARALLEL_DEGREE": 2}
    values |= {"PM_ACTI": 0} if name == "OP_LINEAR" else {}
    return {
        "_t": "Operator",
        "type": name,
        "input": [{"_t": "Tensor", "opId": i, "tsId": 0} for i in inputs],
        "para": [{"_t": "Parameter", "key": k, "value": v} for k, v in values.items()],
    }


def _side(x: Chain, w: Chain, out: Chain, *, linear: bool) -> list[dict[str, Any]]:
    """Moves of x, moves of w, a linear layer of both, moves of the output."""
    operators: list[dict[str, Any]] = []
    ends: list[int] = []
    for at, chain in ((-1, x), (-4, w)):
        for name, dim in chain:
            operators.append(_operator(name, dim, at))
            at = len(operators) - 1
        ends.append(at)
    at = ends[0]
    if linear:
        operators.append(_operator("OP_LINEAR", None, *ends))
        at = len(operators) - 1
    for name, dim in out:
        operators.append(_operator(name, dim, at))
        at = len(operators) - 1
    return operators


def _pairs() -> Iterator[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    for chain in product(MOVES, repeat=3):
        for other in permutations(chain):
            if chain < other:
                yield _side(chain, (), (), linear=False), _side(other, (), (), linear=False)
    singles = [(move,) for move in MOVES]
    for x, w, out in product([(), *singles], [(), *singles], singles):
        right = _side((), (), out, linear=True)
        yield _side(x, w, (), linear=True), right
        yield (
            _side(x, w, (("OP_RELU", None),), linear=True),
            [
                *right,
                _operator("OP_RELU", None, len(right) - 1),
            ],
        )


def _rule(number: int, left: list[dict[str, Any]], right: list[dict[str, Any]]) -> dict[str, Any]:
    ends = {"srcOpId": len(left) - 1, "srcTsId": 0, "dstOpId": len(right) - 1, "dstTsId": 0}
    return {
        "_t": "Rule",
        "name": f"rule_{number}",
        "srcOp": left,
        "dstOp": right,
        "mappedOutput": [{"_t": "MapOutput", **ends}],
    }


def _has_meaning(rule: ForeignRule) -> bool:
    try:
        import_rule(rule, symbolic=False)
    except IllTypedError:
        return False
    return True


def write_rules(path: Path, count: int) -> None:
    """A file of ``count`` rules, a fifth of them ill-typed as in the published files, the same in
    every run."""
    random = Random(0)
    pairs = random.sample(list(_pairs()), 6 * count)
    rules = [_rule(number, *pair) for number, pair in enumerate(pairs)]
    path.write_text(json.dumps({"_t": "RuleCollection", "rule": rules}))
    meaning = [_has_meaning(rule) for rule in read_foreign(path).rules]
    typed = [r for r, has in zip(rules, meaning, strict=True) if has]
    others = [r for r, has in zip(rules, meaning, strict=True) if not has]
    chosen = random.sample(others, count // 5)
    chosen += random.sample(typed, count - len(chosen))
    path.write_text(json.dumps({"_t": "RuleCollection", "rule": chosen}))


def _measure(path: Path) -> str:
    start = perf_counter()
    command = [sys.executable, "-m", "unity.verify", str(path), "--jobs", "2", "--json"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    seconds = perf_counter() - start
    assert ended.returncode in (0, 1), ended.stderr
    records = [json.loads(line) for line in ended.stdout.splitlines()]
    verdicts = Counter(record["verdict"] for record in records)
    slowest = max(records, key=lambda record: record["seconds"])
    # The largest of the processes; there are three.
    memory = 3 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    counts = ", ".join(f"{n} {verdict}" for verdict, n in sorted(verdicts.items()))
    return (
        f"{path.name}: {len(records)} rules in {seconds:.1f} s on 2 processes ({counts}); the"
        f" slowest took {slowest['seconds']:.2f} s; at most {memory:.0f} MB in all"
    )


@pytest.mark.benchmark
def test_foreign_rules(tmp_path: Path) -> None:
    path = tmp_path / "made.json"
    write_rules(path, RULES)
    print(f"\n{_measure(path)}")


@pytest.mark.benchmark
def test_own_rules() -> None:
    print(f"\n{_measure(default_path())}")


@pytest.mark.benchmark
@pytest.mark.skipif(not os.environ.get("RULE_FILES"), reason="RULE_FILES names no files")
def test_given_rules() -> None:
    for path in os.environ["RULE_FILES"].split(":"):
        print(f"\n{_measure(Path(path))}")
