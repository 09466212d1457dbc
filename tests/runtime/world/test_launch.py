"""Worker processes: their results, and how their failures reach the parent.

The functions are ones that any process can import, because workers have to.
"""

from __future__ import annotations

import operator
import os
import subprocess
import sys
import time

import pytest

from pcg.errors import InputError
from pcg.plan.plan import load_plan
from runtime.world.launch import WorkerError, check_computer, launch

pytestmark = pytest.mark.distributed


def test_rank_0_answers():
    assert launch(os.getenv, ("RANK",), 2) == "0"
    assert launch(os.getenv, ("WORLD_SIZE",), 3) == "3"


def test_a_user_error_arrives_as_its_line():
    with pytest.raises(WorkerError) as caught:
        launch(load_plan, ("missing.json",), 2)
    assert str(caught.value) == "missing.json: no such file (expected a JSON file)"
    assert caught.value.exit_status == 2


def test_any_other_error_arrives_with_its_traceback():
    with pytest.raises(RuntimeError, match=r"(?s)worker \d failed:.*ZeroDivisionError"):
        launch(operator.truediv, (1, 0), 2)


@pytest.mark.parametrize(
    ("function", "argument", "how"), [(os._exit, 3, "status 3"), (os.abort, None, "signal SIGABRT")]
)
def test_a_sudden_end_is_reported(function, argument, how):
    begin = time.monotonic()
    with pytest.raises(WorkerError, match=rf"worker \d ended suddenly, by {how}"):
        launch(function, () if argument is None else (argument,), 2)
    assert time.monotonic() - begin < 20


def test_a_computer_without_gpus(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    check_computer("cpu", 1000)
    check_computer("gpu", 1)
    with pytest.raises(InputError, match="the plan needs 2 GPUs, this computer has 1"):
        check_computer("gpu", 2)


def test_a_start_that_its_parent_stopped_says_nothing():
    """The semaphores that a worker opens first are gone by then. Other errors are shown."""
    script = """
import sys
import runtime.world.preload
from multiprocessing import synchronize
lock = synchronize.Lock.__new__(synchronize.Lock)
for act in (lambda: lock.__setstate__((0, 1, 1, "/none")), lambda: open("/no such file")):
    try:
        act()
    except FileNotFoundError:
        sys.excepthook(*sys.exc_info())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr.count("Traceback") == 1
    assert "no such file" in done.stderr
