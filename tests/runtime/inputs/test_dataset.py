"""A user's dataset: the rank of each sample, and errors of data that do not fit."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from support.paths import ROOT
from support.plans.by_hand import make_plan
from torch.utils.data import TensorDataset

from pcg.errors import InputError
from pcg.graph.graph import Leaf
from pcg.ops.user import run_file
from pcg.plan.naming import NamingFile
from pcg.plan.pipeline import PipelineFile
from pcg.plan.text import parse_graph
from pcg.types.tensor import ParallelTensor
from runtime.execute import executor
from runtime.inputs.dataset import UserData, make_source
from runtime.inputs.seeded import Synthetic
from runtime.program.lower import Lowering
from runtime.world.collectives import World

BATCH = 4


def leaf(name, *shape, below=None):
    return Leaf("input", name, len(shape), ParallelTensor.whole(shape), below)


X, Y = leaf("x", BATCH, 3), leaf("y", BATCH, below=10)
NAMING = NamingFile(inputs=("x", None, "y"))
WHOLE_X, WHOLE_Y = ((0, BATCH), (0, 3)), ((0, BATCH),)


def samples(count):
    """Sample i has y = i and x = (i, i + 0.1, i + 0.2)."""
    ids = torch.arange(count)
    return TensorDataset(ids[:, None] + torch.tensor([0.0, 0.1, 0.2]), ids)


def user_data(dataset, seed=0):
    return UserData(dataset, [X, Y], NAMING, seed, "data")


def labels(source, step):
    return source.piece(Y, WHOLE_Y, step).tolist()


def test_inputs_of_a_row_are_of_one_sample_and_pieces_fit_together():
    source, other = user_data(samples(9)), user_data(samples(9))
    for step in range(4):
        x, y = source.piece(X, WHOLE_X, step), source.piece(Y, WHOLE_Y, step)
        assert torch.allclose(x, y[:, None] + torch.tensor([0.0, 0.1, 0.2]))
        piece = other.piece(X, ((2, 4), (1, 3)), step)
        assert torch.equal(piece, x[2:4, 1:3])


def test_a_pass_takes_each_sample_at_most_once_in_an_order_of_its_own():
    source = user_data(samples(9))
    passes = [labels(source, step) + labels(source, step + 1) for step in (0, 2, 4)]
    for seen in passes:
        assert len(set(seen)) == 8
    assert passes[0] != passes[1] != passes[2]
    assert labels(user_data(samples(9), seed=1), 0) != passes[0][:BATCH]


def test_the_order_depends_on_the_step_alone():
    source, resumed = user_data(samples(9)), user_data(samples(9))
    expected = [labels(source, step) for step in range(5)]
    assert labels(resumed, 3) == expected[3]
    assert labels(resumed, 1) == expected[1]


class Stream:
    """Samples by name, without random access."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return iter([{"y": i, "x": torch.full((3,), float(i))} for i in range(self.count)])


def test_an_iterable_goes_on_and_begins_again():
    source = user_data(Stream(6))
    assert [labels(source, step) for step in range(3)] == [[0, 1, 2, 3], [4, 5, 0, 1], [2, 3, 4, 5]]
    assert labels(source, 0) == [0, 1, 2, 3]
    assert labels(user_data(Stream(6)), 2) == [2, 3, 4, 5]
    assert user_data(Stream(6)).piece(X, ((1, 2), (0, 3)), 1).tolist() == [[5.0, 5.0, 5.0]]


def test_a_rank_reads_the_samples_of_its_own_rows():
    asked = []

    class Watched(TensorDataset):
        def __getitem__(self, index):
            asked.append(index)
            return super().__getitem__(index)

    source = user_data(Watched(*samples(8).tensors))
    source.piece(X, ((1, 3), (0, 3)), 0)
    source.piece(Y, ((1, 3),), 0)
    assert len(asked) == 2


def test_constants_serve_inputs_that_samples_lack():
    class WithMask(TensorDataset):
        constants = {"mask": torch.eye(3)}  # noqa: RUF012  # as a user would write it

    mask = leaf("mask", 3, 3)
    data = WithMask(*samples(8).tensors)
    source = UserData(data, [X, Y, mask], NAMING, 0, "data")
    assert source.piece(mask, ((1, 3), (0, 3)), 5).tolist() == [[0, 1, 0], [0, 0, 1]]
    naming = NamingFile(inputs=("x", "y"), buffers={"mask": "net.mask"})
    with pytest.raises(InputError, match=r"input mask: is buffer net\.mask of the model"):
        UserData(samples(8), [X, Y, mask], naming, 0, "data")


def read_all(dataset):
    source = user_data(dataset)
    source.piece(X, WHOLE_X, 0)
    source.piece(Y, WHOLE_Y, 0)


class Broken(TensorDataset):
    def __getitem__(self, index):
        return {}["key"]


@pytest.mark.parametrize(
    ("dataset", "problem"),
    [
        (samples(3), "data: 3 samples, expected a batch of 4 or more"),
        (Stream(0), "data: gives no samples"),
        (Broken(*samples(8).tensors), "raised KeyError: 'key'"),
        (3, "data: returned int, expected a dataset or an iterable"),
        ([{"x": torch.zeros(3)}] * 4, "no input y in a sample, expected a tensor for each of x, y"),
        ([(torch.zeros(3),)] * 4, "expected a tensor for each of x, y"),
        ([(torch.zeros(2), 1)] * 4, "input x: expected shape [3], got [2]"),
        ([(torch.zeros(3), 10)] * 4, "input y: expected integers from 0 to 9, got 10"),
        ([(torch.zeros(3), -1)] * 4, "input y: expected integers from 0 to 9, got -1"),
    ],
)
def test_data_that_does_not_fit(dataset, problem):
    with pytest.raises(InputError) as caught:
        read_all(dataset)
    assert problem in str(caught.value)


def write_module(folder, name):
    text = "import torch\n\ndef train():\n    return [(torch.zeros(3), i) for i in range(8)]\n"
    path = folder / f"{name}.py"
    path.write_text(text + "\ndef fails():\n    raise ValueError('no')\n")
    return path


def test_datasets_are_named_by_module_or_file(tmp_path, monkeypatch):
    path = write_module(tmp_path, "some_samples")
    monkeypatch.chdir(tmp_path)
    for name in (f"{path}:train", "some_samples:train"):
        source = make_source(name, [X, Y], NAMING, 0)
        assert len(set(source.piece(Y, WHOLE_Y, 0).tolist())) == BATCH
    assert make_source(None, [X, Y], NAMING, 3) == Synthetic(3)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("nothing", "expected module:function"),
        ("missing.py:train", "missing.py: no such file"),
        ("no_such_module_here:train", "import of no_such_module_here: ModuleNotFoundError"),
        ("other_samples:test", "other_samples has no function test"),
        ("other_samples:fails", "fails raised ValueError: no"),
    ],
)
def test_names_of_no_dataset(tmp_path, monkeypatch, name, problem):
    write_module(tmp_path, "other_samples")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=f"^--data {name}: {problem}"):
        make_source(name, [X, Y], NAMING, 0)


MODEL = "x = input[8, 6]\nw = weight[6, 4]\nreturn mean_loss(matmul(x, w))"
SLICED = """
x = input[8, 6]
w = weight[6, 4]
return mean_loss(batch(matmul(pipeline(x, dim=0, degree=2), w), dim=0, degree=2))
"""


@pytest.mark.parametrize(("graph", "pieces"), [(MODEL, 1), (SLICED, 2)])
@pytest.mark.parametrize("counts", [False, True])
def test_reading_counts_where_the_data_are_a_users(graph, pieces, counts, monkeypatch):
    """By a clock that only reading advances."""
    clock = [0.0]
    monkeypatch.setattr(executor, "perf_counter", lambda: clock[0])

    class Slow:
        constants = ()
        seed = 0

        def __init__(self):
            self.counts = counts

        def piece(self, leaf, region, step):
            clock[0] += 0.25
            return torch.ones([stop - start for start, stop in region])

    plan = make_plan(parse_graph(MODEL), parse_graph(graph), 1, {})
    if pieces > 1:
        pipeline = PipelineFile(stages=1, micro_batches=pieces, schedule="1f1b")
        plan = replace(plan, pipeline=pipeline)
    trained = executor.Executor(Lowering(plan).program(0), World(), source=Slow())
    for number in range(2):
        timed = trained.step(number, lambda gradients: None)
        assert timed.seconds == (0.25 * pieces if counts else 0.0)


def test_only_a_users_data_count():
    assert user_data(samples(9)).counts
    assert not Synthetic(0).counts


class Divided(Stream):
    """A part of a stream: every n-th sample."""

    def __init__(self, numbers, num_shards=BATCH):
        self.numbers, self.num_shards = list(numbers), num_shards

    def __iter__(self):
        return iter([{"y": i, "x": torch.full((3,), float(i))} for i in self.numbers])

    def shard(self, num_shards, index):
        READ.append(index)
        return Divided(self.numbers[index::num_shards])


READ: list[int] = []


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 9])
def test_an_iterable_that_can_be_divided_is(parts):
    """Each sample is read once, and the order does not depend on the ranks' rows. Nobody reads the
    parts of others."""
    rows = [((0, 2), (0, 3)), ((2, 4), (0, 3))]
    whole = user_data(Divided(range(8), parts))
    expected = [labels(whole, step) for step in range(2)]
    assert sorted(expected[0] + expected[1]) == list(range(8))
    for (begin, end), _ in rows:
        READ.clear()
        own = user_data(Divided(range(8), parts))
        actual = [own.piece(Y, ((begin, end),), step).tolist() for step in range(2)]
        assert actual == [step[begin:end] for step in expected]
        assert len(set(READ)) == max(1, min(parts, 4) // 2)


@pytest.mark.parametrize(
    ("label", "problem"),
    [
        (0.5, "expected whole numbers from 0 to 9, got float32 0.5"),
        (float("nan"), "expected whole numbers from 0 to 9, got float32 nan"),
        (1j, "expected real numbers, got complex64"),
        ("three", "expected a tensor, got str"),
        (2**40, "expected integers from 0 to 9, got 1099511627776"),
    ],
)
def test_wrong_labels_are_refused(label, problem):
    with pytest.raises(InputError) as caught:
        read_all([(torch.zeros(3), label)] * 4)
    assert problem in str(caught.value)
    assert "of the dataset: input y: " in str(caught.value)


@pytest.mark.parametrize("kind", [torch.uint8, torch.int32, torch.bool, torch.float16, torch.int64])
def test_labels_of_any_number_format_are_read_as_int64(kind):
    given = [(torch.zeros(3), torch.tensor(i % 2).to(kind)) for i in range(4)]
    labels = user_data(given).piece(Y, WHOLE_Y, 0)
    assert labels.dtype == torch.int64
    assert sorted(labels.tolist()) == [0, 0, 1, 1]


def test_the_element_that_is_out_of_range_is_named():
    ids = leaf("ids", BATCH, 2, 3, below=10)
    wrong = torch.zeros(2, 3, dtype=torch.int32)
    wrong[1, 2] = -4
    source = UserData([(wrong,)] * 4, [ids], NamingFile(inputs=("ids",)), 0, "data")
    with pytest.raises(InputError, match=r"from 0 to 9, got -4 at \[1, 2\]$"):
        source.piece(ids, ((0, 4), (0, 2), (0, 3)), 0)


OF_A_FILE = """
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {"x": torch.full((3,), float(index)), "y": index}

def train():
    return DataLoader(
        Numbers(), batch_size=None, num_workers=1, multiprocessing_context="forkserver"
    )
"""


def test_classes_of_a_file_reach_workers_that_are_not_forked(tmp_path):
    """A pickle names the module of such a class, and another process has to find it."""
    path = tmp_path / "some numbers.py"
    path.write_text(OF_A_FILE)
    module = run_file(path, "user_data")
    copied = subprocess.run(
        [sys.executable, "-c", "import pickle, sys; print(len(pickle.load(sys.stdin.buffer)))"],
        input=pickle.dumps(module.Numbers()),
        capture_output=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert copied.stdout == b"8\n", copied.stderr


@pytest.mark.soak
def test_a_loader_with_workers_of_a_file(tmp_path):
    path = tmp_path / "numbers.py"
    path.write_text(OF_A_FILE)
    source = make_source(f"{path}:train", [X, Y], NAMING, 0)
    assert [labels(source, step) for step in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
