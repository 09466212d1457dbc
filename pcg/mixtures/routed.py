"""Apply the experts that a router has chosen to tokens, and add up their weighted results.

Problem: a loop over the chosen experts depends on the values of a tensor, so torch cannot export
it. Also, a graph is cut along dimensions, so the experts have to be a dimension.

Method: all sizes here are known before the values are. There are two ways. In the first, each
expert takes each token, and the router's weights, 0 for experts that were not chosen, add up their
results (``everywhere``). This is exactly what the loop computes, with experts / top_k times its
arithmetic. In the second, tokens are routed within groups, and each expert has a fixed number of
places for the tokens of a group (``in_places``), as in GShard (Lepikhin et al., 2021) and Switch
Transformers (Fedus et al., 2022). The first choices of all tokens come before their second choices,
in the order of the tokens. A choice without a place counts 0. A place that nobody took holds the
group's first token, and its result is not read.

All operators are the same for each slice along groups and features, so data parallelism cuts
groups. Experts are a dimension of their inputs, weights and results, so expert parallelism cuts
experts. Between the two, tensors move by all_to_all. Both ways are exact up to the order of sums.
Complexity: linear in tokens x top_k x experts, and in places x features.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import TYPE_CHECKING

from pcg.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

Run = Callable[["Tensor"], "Tensor"]
"""The experts as a function from [experts, rows, width] to [experts, rows, out]."""


def routed(
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    experts: int,
    run: Run,
    capacity_factor: float | None,
    group: int,
) -> Tensor:
    """Return the sum of the chosen experts' results for each token, times weights: [..., out].

    ``x`` is [..., width]. ``chosen`` and ``weights`` are [..., top_k] for the same tokens. Without
    a ``capacity_factor`` each expert takes each token. With one, an expert has a number of places
    for each group of ``group`` consecutive tokens.
    """
    width, top_k = x.shape[-1], chosen.shape[-1]
    if capacity_factor is None:
        chosen, weights = (part.reshape(-1, top_k) for part in (chosen, weights))
        made = everywhere(x.reshape(-1, width), chosen, weights, experts, run)
    else:
        chosen, weights = (part.reshape(-1, group, top_k) for part in (chosen, weights))
        places = places_of(group, experts, top_k, capacity_factor)
        made = in_places(x.reshape(-1, group, width), chosen, weights, experts, places, run)
    return made.view(*x.shape[:-1], made.shape[-1])


def everywhere(x: Tensor, chosen: Tensor, weights: Tensor, experts: int, run: Run) -> Tensor:
    """Return the sum of the chosen experts' results for each token, times their weights.

    ``x`` is [tokens, width]. ``chosen`` and ``weights`` are [tokens, top_k]; a token may not choose
    an expert twice. The result is [tokens, out].
    """
    share = torch.zeros(len(x), experts, dtype=weights.dtype, device=x.device)
    return mixed(x, share.scatter(1, chosen, weights), run)


def mixed(x: Tensor, share: Tensor, run: Run) -> Tensor:
    """Return the same, given the weights of all experts for each token: [tokens, experts]."""
    made = run(x.unsqueeze(0).expand(share.shape[1], *x.shape))
    return (made * share.t().unsqueeze(-1)).sum(0)


def places_of(tokens: int, experts: int, top_k: int, capacity_factor: float) -> int:
    """Return the number of tokens of a group that an expert takes: ``capacity_factor`` times its
    even share, at least one, at most all."""
    return min(tokens, max(1, ceil(capacity_factor * tokens * top_k / experts)))


def in_places(
    x: Tensor, chosen: Tensor, weights: Tensor, experts: int, places: int, run: Run
) -> Tensor:
    """Return the same within groups, for the choices that have a place: [groups, tokens, out].

    ``x`` is [groups, tokens, width]. ``chosen`` and ``weights`` are [groups, tokens, top_k].
    ``places`` is the number of places of each expert in each group.
    """
    groups, tokens, width = x.shape
    top_k = chosen.shape[-1]
    # All first choices, then all second choices.
    ranked = chosen.transpose(1, 2).reshape(groups, top_k * tokens)
    is_of = ranked.unsqueeze(-1) == torch.arange(experts, device=x.device)
    place = is_of.cumsum(1).gather(2, ranked.unsqueeze(-1)).squeeze(-1) - 1
    fits = place < places
    own = ranked * places + place
    choice = torch.arange(top_k * tokens, device=x.device).expand(groups, top_k * tokens)
    # An additional place takes the choices without a place.
    taken = torch.zeros(groups, experts * places + 1, dtype=torch.int64, device=x.device)
    taken = taken.scatter(1, torch.where(fits, own, experts * places), choice)[:, :-1]
    given = _rows(x, taken % tokens).view(groups, experts, places, width)
    made = run(given.transpose(0, 1).reshape(experts, groups * places, width))
    made = made.view(experts, groups, places, -1).transpose(0, 1)
    back = _rows(made.reshape(groups, experts * places, -1), torch.where(fits, own, 0))
    share = torch.where(fits.view(groups, top_k, tokens), weights.transpose(1, 2), 0.0)
    return (back.view(groups, top_k, tokens, -1) * share.unsqueeze(-1)).sum(1)


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """Return the rows of each group at its indices."""
    return x.gather(1, index.unsqueeze(-1).expand(*index.shape, x.shape[-1]))
