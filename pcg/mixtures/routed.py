"""Bring tokens to the experts that a router has chosen for them, and add up what these say.

Problem: a loop over the experts that were hit asks for the values of a tensor, so no program of
torch's has it; and a graph is cut along dimensions, so experts have to be one.

Method: all that is told here about an expert, a token or a place is a tensor of a size that is
known before. Either each expert takes each token, and the router's weights, 0 where an expert was
not chosen, add its results up (``everywhere``): exactly what the loop computes, for experts / top_k
times its arithmetic. Or tokens are routed within groups, and each expert has so many places for the
tokens of a group (``in_places``), as in GShard (Lepikhin et al., 2021) and Switch Transformers
(Fedus et al., 2022): the first choices of all tokens come before their second ones, in the order of
the tokens; whoever finds no place is left out there. A place that nobody took holds the first
token, and no one reads what comes of it.

Groups and features are the same for each slice throughout, so data parallelism cuts groups.
Experts are a dimension of what they take, of their weights and of what they return, so expert
parallelism cuts that; between the two, tensors go by all_to_all. Both are exact, up to the order of
sums; linear in tokens x top_k x experts, and in places x features.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import TYPE_CHECKING

from pcg.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

Run = Callable[["Tensor"], "Tensor"]
"""What experts make of what is given to them: [experts, rows, width] to [experts, rows, out]."""


def routed(
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    experts: int,
    run: Run,
    capacity_factor: float | None,
    group: int,
) -> Tensor:
    """What the chosen experts make of each token, times their weights, added up: [..., out].

    ``x``: [..., width]; ``chosen`` and ``weights``: of the same tokens, [..., top_k]. Without a
    ``capacity_factor`` each expert takes each token; with one, it has places in each group of
    ``group`` tokens side by side.
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
    """What the chosen experts make of each token, times their weights, added up: [tokens, out].

    ``x``: [tokens, width]; ``chosen`` and ``weights``: [tokens, top_k], where no expert is chosen
    twice for a token.
    """
    share = torch.zeros(len(x), experts, dtype=weights.dtype, device=x.device)
    return mixed(x, share.scatter(1, chosen, weights), run)


def mixed(x: Tensor, share: Tensor, run: Run) -> Tensor:
    """The same, of the weights of all experts for each token: [tokens, experts]."""
    made = run(x.unsqueeze(0).expand(share.shape[1], *x.shape))
    return (made * share.t().unsqueeze(-1)).sum(0)


def places_of(tokens: int, experts: int, top_k: int, capacity_factor: float) -> int:
    """How many tokens of a group an expert takes: ``capacity_factor`` times its even share, at
    least one, and no more than there are."""
    return min(tokens, max(1, ceil(capacity_factor * tokens * top_k / experts)))


def in_places(
    x: Tensor, chosen: Tensor, weights: Tensor, experts: int, places: int, run: Run
) -> Tensor:
    """The same within groups, of those choices that found a place: [groups, tokens, out].

    ``x``: [groups, tokens, width]; ``chosen`` and ``weights``: [groups, tokens, top_k]; ``places``:
    of each expert in each group.
    """
    groups, tokens, width = x.shape
    top_k = chosen.shape[-1]
    # All first choices, then all second ones.
    ranked = chosen.transpose(1, 2).reshape(groups, top_k * tokens)
    is_of = ranked.unsqueeze(-1) == torch.arange(experts, device=x.device)
    place = is_of.cumsum(1).gather(2, ranked.unsqueeze(-1)).squeeze(-1) - 1
    fits = place < places
    own = ranked * places + place
    choice = torch.arange(top_k * tokens, device=x.device).expand(groups, top_k * tokens)
    # One place more, for those that find none.
    taken = torch.zeros(groups, experts * places + 1, dtype=torch.int64, device=x.device)
    taken = taken.scatter(1, torch.where(fits, own, experts * places), choice)[:, :-1]
    given = _rows(x, taken % tokens).view(groups, experts, places, width)
    made = run(given.transpose(0, 1).reshape(experts, groups * places, width))
    made = made.view(experts, groups, places, -1).transpose(0, 1)
    back = _rows(made.reshape(groups, experts * places, -1), torch.where(fits, own, 0))
    share = torch.where(fits.view(groups, top_k, tokens), weights.transpose(1, 2), 0.0)
    return (back.view(groups, top_k, tokens, -1) * share.unsqueeze(-1)).sum(1)


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """The rows of each group at its indices."""
    return x.gather(1, index.unsqueeze(-1).expand(*index.shape, x.shape[-1]))
