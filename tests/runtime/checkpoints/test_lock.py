"""One run at a time in a folder: the current owner of the lock, the last one, and the files that
are left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.runs.checkpoints import MODEL, names, plan_of, train

from runtime.checkpoints.lock import NAME, FolderTaken, is_free, remove_stale, take
from runtime.job.job import TryAgain
from runtime.world.processes import Process, this_process


def test_a_folder_is_taken_once_and_given_back(tmp_path):
    lock = take(tmp_path, "a" * 32)
    with pytest.raises(FolderTaken, match=rf"run aaaaaaaa of process {os.getpid()} on \S+ writes"):
        take(tmp_path, "b" * 32)
    assert not is_free(tmp_path)
    lock.release()
    assert names(tmp_path) == []
    take(tmp_path, "b" * 32).release()


def test_one_of_many_concurrent_runs_gets_the_lock(tmp_path):
    def attempt(number):
        try:
            return take(tmp_path, f"{number:032}")
        except FolderTaken:
            return None

    for stale in (False, True):
        if stale:
            write(tmp_path, ended())
        with ThreadPoolExecutor(16) as pool:
            locks = [lock for lock in pool.map(attempt, range(64)) if lock is not None]
        assert len(locks) == 1
        assert names(tmp_path) == [NAME]
        locks[0].release()


def ended():
    """A process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return Process(this_process().host, process.pid, 1)


def write(folder, owner, run="c" * 32):
    content = {"host": owner.host, "pid": owner.pid, "started": owner.started, "run": run}
    (folder / NAME).write_text(json.dumps(content))


def test_ended_process_no_longer_holds_the_lock(tmp_path):
    here = this_process()
    reused = Process(here.host, here.pid, here.started - 1)
    for owner in (ended(), reused):
        write(tmp_path, owner)
        take(tmp_path, "d" * 32).release()
        write(tmp_path, owner)
        assert remove_stale(tmp_path)
        assert names(tmp_path) == []


def test_lock_of_another_computer_is_refused_with_its_remedy(tmp_path):
    write(tmp_path, Process("elsewhere/1/2", 1, 1))
    expected = f"on elsewhere writes there, another computer's; if it has ended, remove {tmp_path}"
    with pytest.raises(FolderTaken, match=expected) as caught:
        take(tmp_path, "d" * 32)
    assert caught.value.exit_status == 75
    assert not remove_stale(tmp_path)
    take(tmp_path, "c" * 32).release()  # an earlier start of the same run, moved


@pytest.mark.parametrize("content", ["", "{}", "nonsense", '{"host": 1}', "\0"])
def test_a_lock_that_cannot_be_read(tmp_path, content):
    (tmp_path / NAME).write_text(content)
    with pytest.raises(FolderTaken, match=r"cannot be read .* remove"):
        take(tmp_path, "d" * 32)
    assert not remove_stale(tmp_path)


def test_run_does_not_release_the_lock_of_another(tmp_path):
    lock = take(tmp_path, "a" * 32)
    write(tmp_path, Process("elsewhere/1/2", 1, 1))
    lock.release()
    assert names(tmp_path) == [NAME]


def test_a_run_gives_its_folder_back(tmp_path):
    plan = plan_of(MODEL)
    train(plan, tmp_path, 2)
    assert names(tmp_path) == ["step-00000002"]
    write(tmp_path, this_process())
    with pytest.raises(TryAgain):
        train(plan, tmp_path, 4, resume=True)
    write(tmp_path, ended())
    (tmp_path / ".writing-step-00000003").mkdir()
    train(plan, tmp_path, 4, resume=True)
    assert names(tmp_path) == ["step-00000002", "step-00000004"]
