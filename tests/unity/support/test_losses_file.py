"""The file of `--losses`: each step once, whatever was killed in between."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from runtime.job.job import Beginning, FinishedStep
from unity.support.losses_file import kept_bytes, losses_file


def lines(*steps, run="a"):
    written = [json.dumps({"number": n, "loss": 0.5, "run": run}) + "\n" for n in steps]
    return "".join(written).encode()


def steps_of(path):
    return [json.loads(line)["number"] for line in path.read_text().splitlines()]


@given(st.lists(st.integers(1, 9)), st.integers(1, 9), st.integers(0, 20), st.booleans())
def test_kept_lines_are_those_of_steps_before_the_first(before, first, cut, goes_on):
    """A run wrote up to some step, after other content, and was killed in the middle of a line."""
    other, own = lines(*before, run="b"), lines(*range(1, 10))
    content = (other + own)[: len(other + own) - cut]
    kept = content[: kept_bytes(content, Beginning(first, goes_on, "a"))]
    assert content.startswith(kept)
    rest = kept[len(other) :] if kept.startswith(other) else b""
    numbers = [json.loads(line)["number"] for line in rest.splitlines()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) < first
    if first > 1:
        assert kept.startswith(other)


def test_a_run_that_goes_on_repeats_nothing(tmp_path):
    path = tmp_path / "log"
    for beginning, steps in (
        (Beginning(1, False, "a"), range(1, 8)),
        (Beginning(5, True, "a"), range(5, 9)),  # restarted
        (Beginning(7, True, "b"), range(7, 10)),  # resumed
        (Beginning(1, False, "c"), range(1, 3)),  # another one, elsewhere
    ):
        with losses_file(str(path)) as log:
            log.begin(beginning)
            for number in steps:
                log.write(FinishedStep(number, 0.5, 0.1))
    assert steps_of(path) == [*range(1, 10), 1, 2]


def test_a_loss_that_is_no_number_is_json(tmp_path):
    path = tmp_path / "log"
    with losses_file(str(path)) as log:
        log.write(FinishedStep(1, float("nan"), 0.1))
        log.write(FinishedStep(2, float("inf"), 0.1))
    records = [json.loads(line, parse_constant=None) for line in path.read_text().splitlines()]
    assert [step["loss"] for step in records] == [None, None]
    assert "NaN" not in path.read_text()
