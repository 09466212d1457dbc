"""A user's model with initial values of all kinds, as a file that `FILE.py:make` names."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import torch

SOURCE = """\
from pathlib import Path
import numpy as np
import torch
from torch import nn

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        nn.init.kaiming_normal_(self.conv.weight, nonlinearity="relu")
        nn.init.zeros_(self.conv.bias)
        self.norm = nn.BatchNorm2d(8)
        self.norm.running_mean.fill_(0.5)
        self.hidden = nn.Linear(8, 16)
        nn.init.orthogonal_(self.hidden.weight)
        self.again = nn.Linear(16, 16, bias=False)
        self.tied = nn.Linear(16, 16, bias=False)
        self.tied.weight = self.again.weight
        read = torch.tensor(eval(Path(__file__).with_name("constant.txt").read_text()))
        self.read = nn.Parameter(read.repeat(16))
        self.frozen = nn.Parameter(torch.randn(16), requires_grad=False)
        self.noise = nn.Parameter(torch.from_numpy(np.random.randn(16).astype("float32")))
        self.register_buffer("shift", torch.rand(16))
        self.factor = torch.rand(16) + 1
        self.last = nn.Linear(16, 4)

    def forward(self, x, labels):
        x = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        x = torch.relu(self.hidden(x)) * self.read + self.frozen + self.noise + self.shift
        with torch.no_grad():
            target = self.hidden.weight.mean() + x.mean()
        x = self.tied(torch.tanh(self.again(x - target))) * self.factor
        x = x + (x.round() - x).detach()
        return nn.functional.cross_entropy(self.last(x), labels)

def make():
    return Own(), (torch.zeros(8, 3, 6, 6), torch.zeros(8, dtype=torch.long))
"""


def write_own(folder: Path) -> str:
    """Write the file, and return the name of the model."""
    (folder / "constant.txt").write_text("0.7")
    path = folder / "own.py"
    path.write_text(SOURCE)
    return f"{path}:make"


def eager(name: str, seed: int = 0):
    """The module of a file, made in the usual way: ``torch.manual_seed(seed); make()``."""
    import numpy as np

    path, _, function = name.rpartition(":")
    spec = spec_from_file_location("eager_model", path)
    assert spec is not None
    assert spec.loader is not None
    file = module_from_spec(spec)
    spec.loader.exec_module(file)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        np.random.seed(seed)
        return getattr(file, function)()[0]
