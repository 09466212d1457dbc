"""A module whose buffers change in every step, and a loop that trains it.

As a script under torchrun, after PLAN: train by a plan, and check that weights, buffers and losses
are those of torch.
"""

from __future__ import annotations

import json
import sys

import torch
from support.runs.own_loop import BATCH, Trained, assert_same, once, trained
from torch import Tensor, nn
from torch.nn import functional as f
from torch.nn.utils import parametrizations

import unity

WIDTH, CODES = 8, 4


class Averages(nn.Module):
    """A layer under spectral norm, a quantizer with a codebook of moving averages, the mean of what
    was seen, a counter, and a buffer that is assigned."""

    codes: Tensor
    sizes: Tensor
    sums: Tensor
    seen: Tensor
    last: Tensor
    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH))
        self.second = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("codes", torch.randn(CODES, WIDTH))
        self.register_buffer("sizes", torch.ones(CODES))
        self.register_buffer("sums", torch.randn(CODES, WIDTH))
        self.register_buffer("seen", torch.ones(WIDTH))
        self.register_buffer("last", torch.zeros(WIDTH), persistent=False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.first(x).tanh()
        chosen = f.one_hot((h @ self.codes.T).argmax(1), CODES).to(h.dtype)
        code = chosen @ self.codes
        if self.training:
            self._update(h, chosen)
        passed = h + (code - h).detach()
        loss = f.mse_loss(self.second(passed) / self.seen, x) + f.mse_loss(h, code.detach())
        return {"loss": loss * (1 + self.last.mean())}

    @torch.no_grad()
    def _update(self, h: Tensor, chosen: Tensor) -> None:
        self.sizes.mul_(0.9).add_(chosen.sum(0), alpha=0.1)
        self.sums.mul_(0.9).add_(chosen.T @ h, alpha=0.1)
        self.codes.copy_(self.sums / (self.sizes[:, None] + 1e-5))
        self.seen.lerp_(h.abs().mean(0), 0.1)
        self.last = h.mean(0)
        self.steps += 1


def averages() -> Averages:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Averages().double()


def batch_of(number: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(number)
    return {"x": torch.randn(BATCH, WIDTH, generator=generator, dtype=torch.float64)}


@once
def expected(parts: int) -> Trained:
    module = averages()
    return trained(
        module, lambda most: nn.utils.clip_grad_norm_(module.parameters(), most), batch_of, parts
    )


def main(plan: str) -> None:
    torch.set_num_threads(1)
    model = unity.parallelize(averages(), plan)
    result = trained(model, model.clip_grad_norm_, batch_of)
    assert_same(result, expected(1))
    if torch.distributed.get_rank() == 0:
        print(json.dumps({"steps": int(result.state["steps"])}))


if __name__ == "__main__":
    main(sys.argv[1])
