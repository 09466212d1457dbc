"""Experts cut between four processes: planned, audited, and trained as torch trains them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.pages import blocks
from support.paths import ROOT

from pcg.plan.plan import load_plan
from unity.__main__ import main

pytestmark = [pytest.mark.distributed, pytest.mark.soak]

PAGE = ROOT / "docs" / "mixture-of-experts.md"
MACHINE = ROOT / "tests" / "data" / "four-devices.toml"
LOOP = """
import os
import torch
import unity
from my_experts import make_model

model, _ = make_model()
if "RANK" in os.environ:
    model = unity.parallelize(model, "plan.json")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for step in range(3):
    ids = torch.randint(0, 40, (8, 8), generator=torch.Generator().manual_seed(step))
    model(ids, ids.roll(-1, 1)).backward()
    optimizer.step()
    optimizer.zero_grad()
state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
if os.environ.get("RANK", "0") == "0":
    torch.save(state, "parallel.pt" if "RANK" in os.environ else "alone.pt")
"""


def unity(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


def ran(*words: str, folder: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True,
        timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]


def test_experts_on_four_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (shown,) = (block for block in blocks(PAGE) if block.file == "my_experts.py")
    (tmp_path / "my_experts.py").write_text(shown.text, "utf-8")
    (tmp_path / "loop.py").write_text(LOOP, "utf-8")
    named = "my_experts.py:make_model"
    assert unity("optimize", named, "--machine", str(MACHINE), "-o", "plan.json") == 0
    products = [n for n in load_plan("plan.json").graph.operators if n.name == "batch_matmul"]
    assert len(products) == 3
    assert all(list(n.inputs[1].type.degrees.dims) == [4, 1, 1] for n in products)
    assert unity("audit", "plan.json", "--model", named, "--machine", str(MACHINE)) == 0
    start = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4")
    ran(*start, "loop.py", folder=tmp_path)
    ran("loop.py", folder=tmp_path)
    actual, expected = (torch.load(f"{name}.pt") for name in ("parallel", "alone"))
    assert list(actual) == list(expected)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)
