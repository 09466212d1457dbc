"""Norms, attention, losses and look-ups at the shapes of models, against torch's own layers."""

from __future__ import annotations

import pytest
import torch
from support.cases import a_third
from support.graphs.differential import assert_means
from support.graphs.torch_functions import default_dtype
from torch import Tensor
from torch.nn import functional

from pcg.ops import OPERATORS, attention, constants, lookup, norms, reductions, reindexing
from runtime.execute.kernels import run_equation, run_whole, whole_task

DTYPES = (torch.float64, torch.float32, torch.bfloat16)


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ids(seed: int, below: int, *shape: int) -> Tensor:
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", a_third(DTYPES))
@pytest.mark.parametrize("shape", [(8, 5), (6, 3, 4), (6, 3, 4, 5)])
def test_batch_norm(shape: tuple[int, ...], dtype: torch.dtype):
    x, weight, bias = numbers(1, *shape) * 3 + 1, numbers(2, shape[1]), numbers(3, shape[1])

    def theirs(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.batch_norm(x, None, None, weight, bias, training=True, eps=1e-3)

    def in_groups(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.cat([theirs(part, weight, bias) for part in x.chunk(2)])

    assert_means(norms.batch_norm(eps=1e-3), (x, weight, bias), theirs, dtype)
    ghost = norms.ghost_batch_norm(groups=2, eps=1e-3)
    assert_means(ghost, (x, weight, bias), in_groups, dtype)
    one = norms.ghost_batch_norm(groups=1, eps=1e-3)
    assert_means(one, (x, weight, bias), theirs, dtype)


def test_a_batch_norm_by_one_number_has_its_gradient():
    """Torch's own kernel on a CPU misreads a weight that is repeated by its strides."""
    x, one = numbers(1, 6, 4).requires_grad_(), torch.ones((), dtype=torch.float64)
    given = [(one.expand(4), (one * 0).expand(4)), (torch.ones(4), torch.zeros(4))]
    own, plain = (
        torch.autograd.grad((norms.norm_with(x, *of, None, None, 1e-3) ** 3).sum(), x)[0]
        for of in given
    )
    torch.testing.assert_close(own, plain)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm(dtype: torch.dtype):
    layer = torch.nn.RMSNorm(16, eps=1e-5)
    call = norms.rms_norm(eps=layer.eps or 0.0)
    x, weight = numbers(1, 2, 5, 16), numbers(2, 16)
    assert_means(call, (x, weight), lambda x, w: functional.rms_norm(x, (16,), w, layer.eps), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_attention_is_that_of_torch(batch: tuple[int, ...], dtype: torch.dtype):
    q, k, v = numbers(1, *batch, 5, 8), numbers(2, *batch, 7, 8), numbers(3, *batch, 7, 4)
    mask = numbers(4, *batch, 5, 7)
    sdpa = functional.scaled_dot_product_attention
    assert_means(attention.attention(), (q, k, v), sdpa, dtype)
    causal = attention.causal_attention()
    assert_means(causal, (q, k, v), lambda q, k, v: sdpa(q, k, v, is_causal=True), dtype)
    assert_means(attention.masked_attention(), (q, k, v, mask), sdpa, dtype)


def test_attention_heads_of_torch():
    """The layer of torch.nn by our operators: one mask for all heads, by ``expand``."""
    layer = torch.nn.MultiheadAttention(12, 3, bias=False, batch_first=True).double()
    x, mask = numbers(1, 2, 5, 12), numbers(2, 5, 5)
    q, k, v = (
        (x @ w.T).unflatten(-1, (3, 4)).transpose(1, 2) for w in layer.in_proj_weight.chunk(3)
    )
    for _ in range(2):
        mask = run_whole(reindexing.expand(axis=0, size=2 if mask.dim() == 3 else 3), [mask])[0]
    (mixed,) = run_whole(attention.masked_attention(), [q, k, v, mask])
    ours = mixed.transpose(1, 2).flatten(2) @ layer.out_proj.weight.T
    torch.testing.assert_close(ours, layer(x, x, x, attn_mask=mask[0, 0])[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_losses_are_those_of_torch(dtype: torch.dtype):
    logits, target = numbers(1, 6, 9) * 4, ids(2, 9, 6)
    assert_means(
        reductions.cross_entropy(),
        (logits, target),
        lambda logits, target: functional.cross_entropy(logits, target.long()),
        dtype,
    )
    assert_means(
        reductions.nll(),
        (logits, target, numbers(3, 6)),
        lambda logits, target, total: functional.nll_loss(
            logits - total.unsqueeze(1), target.long(), reduction="none"
        ),
        dtype,
    )
    for axis in (0, 1):
        call = reductions.logsumexp(axis=axis)
        assert_means(call, (logits,), lambda x, axis=axis: torch.logsumexp(x, axis), dtype)
        call = reductions.log_softmax(axis=axis)
        assert_means(call, (logits,), torch.nn.LogSoftmax(axis), dtype)


def in_blocks(logits: Tensor, target: Tensor, count: int) -> Tensor:
    """The losses of rows. Their classes are in blocks that are computed separately."""
    blocks = logits.chunk(count, dim=1)
    whole = reductions.logsumexp(axis=1)
    totals = torch.stack([run_whole(whole, [block])[0] for block in blocks], dim=1)
    (total,) = run_whole(whole, [totals])
    starts = range(0, logits.shape[1], blocks[0].shape[1])
    parts = [
        run_whole(reductions.nll(), [block, target - start, total])[0]
        for block, start in zip(blocks, starts, strict=True)
    ]
    return torch.stack(parts).sum(0)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_a_loss_in_blocks_of_classes_is_stable(scale: float):
    """In float32, nothing overflows at 1e4, and the loss is as exact as logits of that size are."""
    logits = (numbers(1, 6, 24) * scale).float().requires_grad_()
    target = ids(2, 24, 6)
    target[2] = -100  # is left out
    theirs = functional.cross_entropy(logits.double(), target, reduction="none")
    ours = in_blocks(logits, target, 4)
    half = torch.finfo(torch.float32).eps * float(logits.detach().abs().max())
    torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=2 * half)
    (wanted,) = torch.autograd.grad(theirs.sum(), logits)
    (gradient,) = torch.autograd.grad(ours.sum(), logits)
    torch.testing.assert_close(gradient, wanted, rtol=0, atol=4 * half)


def test_classes_that_are_masked_in_a_whole_block_have_no_gradient():
    logits = numbers(1, 5, 12)
    logits[:, 6:9] = -torch.inf
    logits.requires_grad_()
    target = ids(2, 6, 5)
    theirs = functional.cross_entropy(logits, target, reduction="none")
    ours = in_blocks(logits, target, 4)
    torch.testing.assert_close(ours, theirs)
    (wanted,) = torch.autograd.grad(theirs.sum(), logits)
    (gradient,) = torch.autograd.grad(ours.sum(), logits)
    assert not gradient[:, 6:9].any()
    torch.testing.assert_close(gradient, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_look_ups(dtype: torch.dtype):
    table, bags, x = numbers(1, 10, 4), ids(2, 10, 3, 5), numbers(3, 3, 10)
    assert_means(
        lookup.embedding_bag(),
        (bags, table),
        lambda bags, table: functional.embedding_bag(bags.long(), table, mode="sum"),
        dtype,
    )
    assert_means(lookup.gather(), (x, bags), lambda x, i: torch.gather(x, 1, i.long()), dtype)
    assert_means(lookup.cumulative_sum(), (x,), lambda x: torch.cumsum(x, -1), dtype)


@pytest.mark.parametrize("name", ["embedding", "embedding_bag", "gather"])
def test_an_id_of_nothing_finds_0(name: str):
    table = numbers(1, 3) if name == "gather" else numbers(1, 3, 2)
    at = torch.tensor([1.0, 3.0, -1.0, 7.0], dtype=torch.float64)
    operands = [table, at] if name == "gather" else [at, table]
    call = OPERATORS[name]()
    task = whole_task(call, [tuple(x.shape) for x in operands])
    starts = [(0,) * x.dim() for x in operands]
    (ours,), (wanted,) = run_whole(call, operands), run_equation(call, task, operands, starts)
    torch.testing.assert_close(ours, wanted)
    actual = ours[0] if name != "embedding_bag" else ours
    torch.testing.assert_close(actual, table[1])


def test_one_hot_of_an_id_beyond_the_classes():
    (ours,) = run_whole(lookup.one_hot(classes=2), [torch.tensor([0.0, 1.0, 2.0])])
    assert ours.tolist() == [[1, 0], [0, 1], [0, 0]]


def test_position_ids_are_running_sums_of_ones():
    (ones,) = run_whole(constants.ones1(size0=7), [])
    (counted,) = run_whole(lookup.cumulative_sum(), [ones])
    (positions,) = run_whole(constants.position_ids(size=7), [])
    torch.testing.assert_close(counted - 1, positions)


def test_experts_receive_and_return_their_tokens():
    """Each token has a place of its own, and a token that was sent with a weight comes back with
    it."""
    tokens, experts, capacity = numbers(1, 6, 4), 3, 2
    places = torch.randperm(6, generator=torch.Generator().manual_seed(2))
    mask = functional.one_hot(places, 6).double().unflatten(1, (experts, capacity))
    (sent,) = run_whole(lookup.moe_dispatch(), [tokens, mask])
    torch.testing.assert_close(sent.flatten(0, 1)[places], tokens)
    weights = numbers(3, 6).abs()
    (back,) = run_whole(lookup.moe_combine(), [sent, mask * weights[:, None, None]])
    torch.testing.assert_close(back, tokens * weights[:, None])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", [o.name for o in OPERATORS.values() if not o.arity])
def test_constants_have_the_default_format(name: str, dtype: torch.dtype):
    operator = OPERATORS[name]
    with default_dtype(dtype):
        (ours,) = run_whole(operator(**dict.fromkeys(operator.sizes, 2)), [])
    assert ours.dtype == dtype
