"""Features of torch that models use: functions of a module with some parameters, and of rows.

Each is a feature that some public model uses. ``EXACT`` have to be captured with their gradients.
"""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional as f
from torch.utils.checkpoint import checkpoint

ROWS, WIDTH = 6, 8


class Parts(nn.Module):
    """Two layers, a matrix, a vector, a table, and buffers. ``function`` makes the loss."""

    def __init__(self, function):
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.w = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.v = nn.Parameter(torch.randn(WIDTH))
        self.table = nn.Embedding(7, WIDTH)
        self.register_buffer("steps", torch.arange(WIDTH, dtype=torch.float32))
        self.register_buffer("mask", torch.full((ROWS, ROWS), float("-inf")).triu(1))
        self.register_buffer("ids", torch.tensor([1, 0, 3, 2, 6, 3]))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.function = function

    def forward(self, x):
        return self.function(self, x)


def of(function):
    """The loss of a function of rows that the layers have made."""
    return lambda m, x: (m.b(function(m, m.a(x))) * m.v).sum()


def ends(function):
    """The loss of a function's elements, each with a different weight."""

    def loss(m, x):
        y = function(m, m.a(x))
        return (y * torch.arange(1, y.numel() + 1, dtype=y.dtype).view(y.shape) / 7).sum()

    return loss


def adds_in_place(m, x):
    h = m.a(x)
    h += 1
    h[:, 2:4] *= 3
    h[0] = m.v
    h[:, -1].zero_()
    return m.b(h.relu_()).sum()


def fills_a_tensor(m, x):
    made = torch.zeros(ROWS, 2 * WIDTH, dtype=x.dtype)
    made[:, :WIDTH] = m.a(x)
    made[:, WIDTH:] = m.b(x)
    made[1::2] = made[1::2] * 2
    return made.square().sum()


def counts(m, x):
    """A buffer that no loss reads."""
    m.count += 1
    return m.a(x).square().sum()


def loops(m, x):
    states = []
    h = x[0]
    for row in x.unbind(0):
        h = torch.tanh(m.a(row) + h @ m.w)
        states.append(h)
    return torch.stack(states).square().sum()


def rotary(m, x):
    """Rotary positions by complex numbers: pairs of numbers are turned by an angle that grows with
    the row."""
    h = m.a(x)
    turned = torch.view_as_complex(h.view(ROWS, WIDTH // 2, 2))
    angle = torch.outer(torch.arange(ROWS), 1.0 / 10 ** torch.arange(WIDTH // 2))
    turned = turned * torch.polar(torch.ones_like(angle), angle)
    return m.b(torch.view_as_real(turned).flatten(1).to(h.dtype)).square().sum()


def rotary_halves(m, x):
    h = m.a(x)
    angle = torch.outer(torch.arange(ROWS), 1.0 / 10 ** torch.arange(WIDTH // 2))
    angle = torch.cat([angle, angle], -1)
    low, high = h.chunk(2, -1)
    return m.b(h * angle.cos() + torch.cat([-high, low], -1) * angle.sin()).square().sum()


def float_causal_mask(m, x):
    q, k = m.a(x), m.b(x)
    scores = q @ k.T / math.sqrt(WIDTH) + m.mask
    return (scores.softmax(-1) @ x).square().sum()


def made_causal_mask(m, x):
    mask = torch.triu(torch.full((ROWS, ROWS), float("-inf")), diagonal=1)
    return f.scaled_dot_product_attention(m.a(x), m.b(x), x, mask.to(x.dtype)).square().sum()


def alibi(m, x):
    far = torch.arange(ROWS)[None] - torch.arange(ROWS)[:, None]
    bias = torch.where(far > 0, float("-inf"), far * 0.5).to(x.dtype)
    return ((m.a(x) @ m.b(x).T + bias).softmax(-1) @ x).square().sum()


def nested(m, x):
    def inner(y, *, scale=2.0, **options):
        return m.a(y) * scale + options["more"]

    return m.b(inner(x, more=1.0)).square().sum()


def by_dictionary(m, x):
    parts = OrderedDict(first=m.a(x), second=m.b(x))
    return sum(part.square().sum() for part in parts.values())


def with_a_closure(m, x):
    return checkpoint(lambda y: m.b(torch.tanh(m.a(y))), x, use_reentrant=False).square().sum()


def smoothed(m, x):
    return f.cross_entropy(m.a(x), m.ids, label_smoothing=0.1)


def weighted(m, x):
    return f.cross_entropy(m.a(x), m.ids, weight=m.steps.to(x.dtype) + 1)


def routed(m, x):
    """The best two of several experts for each row, without a capacity."""
    shares, chosen = m.a(x).softmax(-1).topk(2)
    mixed = torch.zeros_like(x)
    for expert in range(WIDTH):
        weight = (shares * (chosen == expert)).sum(-1, keepdim=True)
        mixed = mixed + weight * torch.tanh(m.b(x) * (expert + 1))
    return mixed.square().sum()


def standard_deviation(m, x):
    h = m.a(x)
    return ((h - h.mean(-1, keepdim=True)) / (h.std(-1, keepdim=True) + 1e-5) * m.v).sum()


def rms(m, x):
    h = m.a(x)
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * m.v).square().sum()


def graph_network(m, x):
    """Messages along the edges of a graph, added up at their ends."""
    source, target = m.ids, m.ids.flip(0)
    h = m.a(x)[:, :]
    h = torch.cat([h, h[:1]])
    messages = torch.tanh(m.b(h[source] + h[target]))
    received = torch.zeros_like(h).index_add(0, target, messages)
    spread = torch.zeros_like(h).scatter_add(
        0, target[:, None].expand(-1, WIDTH), messages * h[source]
    )
    return (received * spread).square().sum()


def sinusoidal(m, x):
    rows, columns = torch.arange(ROWS)[:, None], torch.arange(0, WIDTH, 2)
    places = torch.zeros(ROWS, WIDTH)
    places[:, 0::2] = torch.sin(rows / 100 ** (columns / WIDTH))
    places[:, 1::2] = torch.cos(rows / 100 ** (columns / WIDTH))
    return m.a(x + places.to(x.dtype)).square().sum()


EXACT = {
    # in place
    "updates in place": adds_in_place,
    "a tensor that is filled": fills_a_tensor,
    "a counter": counts,
    "masked_fill_": of(lambda m, h: (h * 1).masked_fill_(h > 0.5, 2.0)),
    "clamp_": of(lambda m, h: (h * 1).clamp_(-0.5, 0.5)),
    "add_ with alpha": of(lambda m, h: (h * 1).add_(m.v, alpha=0.5)),
    "index_put_": ends(lambda m, h: (h * 1).index_put_((m.ids[:2],), m.v.expand(2, -1))),
    "index_put_ that adds": ends(
        lambda m, h: (h * 1).index_put_((m.ids % 3,), h.tanh(), accumulate=True)
    ),
    "copy_": of(lambda m, h: torch.zeros_like(h).copy_(h.tanh())),
    "scatter": ends(lambda m, h: h.scatter(1, m.ids[:, None], h[:, :1] * 2)),
    "scatter_add": ends(lambda m, h: h.scatter_add(1, m.ids[:, None], h[:, :1] * 2)),
    "scatter_reduce": ends(lambda m, h: h.scatter_reduce(1, m.ids[:, None], h[:, 1:2], "amax")),
    "index_add": ends(lambda m, h: h.index_add(0, m.ids % 6, h.tanh())),
    "index_select": of(lambda m, h: h.index_select(0, m.ids % 6)),
    "gather": ends(lambda m, h: h.gather(1, m.ids[:, None].expand(-1, 2))),
    "take_along_dim": ends(lambda m, h: h.take_along_dim(m.ids[:, None], 1)),
    "a list as an index": of(lambda m, h: h[[5, 0, 0, 1, 2, 3]]),
    "a mask as an index": of(lambda m, h: torch.where(h > 0, h, h * 0.1)),
    "two indices": ends(lambda m, h: h[torch.arange(ROWS), m.ids]),
    "boolean rows": ends(lambda m, h: h * (m.ids > 2)[:, None]),
    # views
    "chunk": of(lambda m, h: torch.cat(h.chunk(3, 1)[::-1], 1)),
    "tensor_split": of(lambda m, h: torch.cat(h.tensor_split((1, 5), 1)[::-1], 1)),
    "unbind": of(lambda m, h: torch.stack(h.unbind(1)[::-1], 1)),
    "strided slices": of(lambda m, h: torch.cat([h[:, ::2], h[:, 1::2]], 1)),
    "negative slices": of(lambda m, h: torch.cat([h[:, -3:], h[:, :-3]], 1)),
    "roll": of(lambda m, h: h.roll((1, -2), (0, 1))),
    "flip": of(lambda m, h: h.flip(0, 1)),
    "rot90": ends(lambda m, h: h.rot90()),
    "repeat": ends(lambda m, h: h.repeat(2, 3)),
    "repeat_interleave": ends(lambda m, h: h.repeat_interleave(2, 1)),
    "tile": ends(lambda m, h: h.tile(2)),
    "expand": ends(lambda m, h: h[:, None, :].expand(-1, 3, -1)),
    "movedim": of(lambda m, h: h.view(ROWS, 2, 4).movedim(1, 2).reshape(ROWS, WIDTH)),
    "swapaxes": ends(lambda m, h: h.swapaxes(0, 1)),
    "unfold": ends(lambda m, h: h.unfold(1, 3, 2)),
    "as_strided": ends(lambda m, h: h.contiguous().as_strided((3, 3), (8, 1), 1)),
    "diagonal": ends(lambda m, h: h.diagonal()),
    "diag_embed": ends(lambda m, h: torch.diag_embed(h)),
    "tril": ends(lambda m, h: h.tril(-1) + h.triu(2)),
    "pixel_shuffle": ends(lambda m, h: f.pixel_shuffle(h.view(1, 8, 2, 3), 2)),
    "reflected pad": ends(lambda m, h: f.pad(h[None], (2, 1), mode="reflect")),
    "circular pad": ends(lambda m, h: f.pad(h[None], (2, 1), mode="circular")),
    "replicated pad": ends(lambda m, h: f.pad(h[None], (2, 1), mode="replicate")),
    "negative pad": ends(lambda m, h: f.pad(h, (-1, 2, 0, 1), value=3.0)),
    "meshgrid": ends(lambda m, h: torch.mul(*torch.meshgrid(h[0], h[1], indexing="ij"))),
    "not contiguous": of(lambda m, h: h.T.contiguous().T),
    "im2col": ends(lambda m, h: f.unfold(h.view(1, 2, 4, 6), 2)),
    "col2im": ends(lambda m, h: f.fold(h.view(1, 8, 6), (3, 4), 2)),
    # products
    "einsum": of(lambda m, h: torch.einsum("ij,kj->ik", h, m.w)),
    "einsum of three": ends(lambda m, h: torch.einsum("ij,jk,k->i", h, m.w, m.v)),
    "tensordot": of(lambda m, h: torch.tensordot(h, m.w, dims=1)),
    "outer": ends(lambda m, h: torch.outer(h[0], m.v)),
    "baddbmm": ends(
        lambda m, h: torch.baddbmm(
            h.view(2, 3, 8), h.view(2, 3, 8), m.w.expand(2, 8, 8), beta=0.5, alpha=2.0
        )
    ),
    "matrix and vector": ends(lambda m, h: h @ m.v),
    "vector and matrix": ends(lambda m, h: m.v @ h.T),
    "dot": lambda m, x: torch.dot(m.a(x)[0], m.v),
    "a broadcast product": ends(lambda m, h: h.view(2, 1, 3, 8) @ m.w),
    "cdist": ends(lambda m, h: torch.cdist(h, m.w)),
    "cosine_similarity": ends(lambda m, h: f.cosine_similarity(h, m.b(h))),
    "normalize": of(lambda m, h: f.normalize(h, dim=-1)),
    "kron": ends(lambda m, h: torch.kron(h[:2, :2], m.w[:2, :2])),
    # reductions
    "amax": ends(lambda m, h: h.amax(1)),
    "max with index": ends(lambda m, h: h.max(1).values),
    "argmax": of(lambda m, h: h + f.one_hot(h.argmax(1), WIDTH)),
    "var": ends(lambda m, h: h.var(1)),
    "std": standard_deviation,
    "var_mean": ends(lambda m, h: torch.mul(*torch.var_mean(h, 1, correction=0))),
    "norm": ends(lambda m, h: h.norm(dim=1)),
    "a norm of order 1": ends(lambda m, h: torch.linalg.vector_norm(h, 1, dim=1)),
    "logsumexp": ends(lambda m, h: h.logsumexp(1)),
    "prod": ends(lambda m, h: h.prod(1)),
    "median": ends(lambda m, h: h.median(1).values),
    "cumsum": ends(lambda m, h: h.cumsum(1)),
    "cumprod": ends(lambda m, h: h.cumprod(1)),
    "cummax": ends(lambda m, h: h.cummax(1).values),
    "logcumsumexp": ends(lambda m, h: h.logcumsumexp(1)),
    "topk": ends(lambda m, h: h.topk(3, 1).values),
    "sort": ends(lambda m, h: h.sort(1, descending=True).values),
    "argsort": ends(lambda m, h: h.gather(1, h.argsort(1))),
    "all reduced": lambda m, x: m.a(x).mean() + m.b(x).amax() + m.v.std(),
    # functions of elements
    "where": of(lambda m, h: torch.where(h > m.v, h, m.v)),
    "where with numbers": of(lambda m, h: torch.where(h > 0, 1.0, h)),
    "clamp below": of(lambda m, h: h.clamp(min=0.1)),
    "clamp by tensors": of(lambda m, h: h.clamp(-m.v.abs(), m.v.abs())),
    "relu6": of(lambda m, h: f.relu6(h * 4)),
    "hardswish": of(lambda m, h: f.hardswish(h * 2)),
    "leaky_relu": of(lambda m, h: f.leaky_relu(h)),
    "prelu": of(lambda m, h: f.prelu(h, m.v.abs())),
    "elu": of(lambda m, h: f.elu(h) + f.selu(h) + f.celu(h)),
    "softplus": of(lambda m, h: f.softplus(h) + f.mish(h) + f.logsigmoid(h)),
    "glu": ends(lambda m, h: f.glu(h)),
    "gelu by tanh": of(lambda m, h: f.gelu(h, approximate="tanh")),
    "powers": of(lambda m, h: h.abs() ** 1.5 + 2.0**h + h**3),
    "trigonometry": of(lambda m, h: h.sin() * h.cos() + torch.atan2(h, m.v)),
    "erf": of(lambda m, h: h.erf() + h.expm1() + h.abs().log1p() + h.sign()),
    "lerp": of(lambda m, h: torch.lerp(h, m.v.expand_as(h), 0.3)),
    "addcmul": of(lambda m, h: torch.addcmul(h, m.v, h, value=0.5)),
    "floor and remainder": of(lambda m, h: h.floor() + h.remainder(0.7) + h.fmod(0.7) + h.round()),
    "floor division": of(lambda m, h: h + h.detach() // 0.5),
    "comparisons": of(lambda m, h: h * (h >= m.v) + h * ~(h < 0) * ((h > 0) | (h < -1))),
    "isnan and nan_to_num": of(lambda m, h: torch.nan_to_num(h).masked_fill(h.isnan(), 0.0)),
    "reversed operands": of(lambda m, h: 1 - h + 2 / (h.abs() + 1)),
    # normalization
    "layer norm without affine": of(lambda m, h: f.layer_norm(h, (WIDTH,))),
    "layer norm over all": of(lambda m, h: f.layer_norm(h, (ROWS, WIDTH))),
    "layer norm without bias": of(lambda m, h: f.layer_norm(h, (WIDTH,), m.v)),
    "rms_norm": of(lambda m, h: f.rms_norm(h, (WIDTH,), m.v)),
    "rms by hand": rms,
    "group norm": of(lambda m, h: f.group_norm(h, 2, m.v, m.v)),
    "group norm of images": ends(lambda m, h: f.group_norm(h.view(3, 4, 2, 2), 2)),
    "instance norm": ends(lambda m, h: f.instance_norm(h.view(3, 4, 4))),
    "local response norm": ends(lambda m, h: f.local_response_norm(h.view(3, 4, 4), 2)),
    # losses
    "label smoothing": smoothed,
    "class weights": weighted,
    "probabilities as labels": lambda m, x: f.cross_entropy(m.a(x), m.b(x).softmax(1).detach()),
    "nll_loss": lambda m, x: f.nll_loss(m.a(x).log_softmax(1), m.ids),
    "losses of rows": lambda m, x: f.cross_entropy(m.a(x), m.ids, reduction="none").square().sum(),
    "bce with logits": lambda m, x: f.binary_cross_entropy_with_logits(m.a(x), (x > 0).to(x.dtype)),
    "bce": lambda m, x: f.binary_cross_entropy(m.a(x).sigmoid(), (x > 0).to(x.dtype)),
    "smooth l1": lambda m, x: f.smooth_l1_loss(m.a(x), x) + f.huber_loss(m.b(x), x),
    "l1": lambda m, x: f.l1_loss(m.a(x), x),
    "kl_div": lambda m, x: f.kl_div(m.a(x).log_softmax(1), x.softmax(1), reduction="batchmean"),
    "hinge": lambda m, x: f.multi_margin_loss(m.a(x), m.ids),
    "triplet": lambda m, x: f.triplet_margin_loss(m.a(x), m.b(x), x),
    "contrastive": lambda m, x: f.cross_entropy(
        f.normalize(m.a(x)) @ f.normalize(m.b(x)).T * m.v[0].exp(), torch.arange(ROWS)
    ),
    "gaussian loss": lambda m, x: f.gaussian_nll_loss(m.a(x), x, m.b(x).exp()),
    "poisson loss": lambda m, x: f.poisson_nll_loss(m.a(x), x.abs()),
    # images and sequences
    "interpolate": ends(lambda m, h: f.interpolate(h.view(1, 2, 4, 6), scale_factor=2)),
    "fft": ends(lambda m, h: torch.fft.rfft(h).abs()),
    "bilinear": lambda m, x: f.bilinear(m.a(x), x, m.w[None].expand(2, -1, -1)).square().sum(),
    "bilinear interpolation": ends(
        lambda m, h: f.interpolate(h.view(1, 2, 4, 6), (5, 7), mode="bilinear", align_corners=False)
    ),
    "conv1d": ends(lambda m, h: f.conv1d(h.view(2, 8, 3), m.w[:, :, None], m.v, padding="same")),
    "conv_transpose2d": ends(
        lambda m, h: f.conv_transpose2d(h.view(1, 8, 2, 3), m.w.view(8, 2, 2, 2), stride=2)
    ),
    "conv3d": ends(lambda m, h: f.conv3d(h.view(1, 2, 2, 3, 4), m.w.view(4, 2, 2, 2, 2))),
    "adaptive pools": ends(lambda m, h: f.adaptive_avg_pool1d(h[None], 3)),
    "avg_pool1d": ends(lambda m, h: f.avg_pool1d(h[None], 2) + f.max_pool1d(h[None], 2)),
    "lp_pool": ends(lambda m, h: f.lp_pool1d(h.abs()[None] + 0.1, 2, 2)),
    "grid_sample": ends(
        lambda m, h: f.grid_sample(
            h.view(1, 2, 4, 6), m.b(h)[:2].tanh().view(1, 2, 4, 2), align_corners=False
        )
    ),
    # models
    "a loop over rows": loops,
    "complex rotary embeddings": rotary,
    "rotary embeddings by halves": rotary_halves,
    "a float causal mask in a buffer": float_causal_mask,
    "a float causal mask": made_causal_mask,
    "alibi": alibi,
    "sinusoidal places": sinusoidal,
    "attention with scale": lambda m, x: f.scaled_dot_product_attention(
        m.a(x), m.b(x), x, scale=0.3
    ).sum(),
    "nested functions": nested,
    "a dictionary of parts": by_dictionary,
    "a checkpoint of a closure": with_a_closure,
    "routing": routed,
    "a graph network": graph_network,
    "an embedding bag": lambda m, x: (
        (f.embedding_bag(m.ids, m.table.weight, torch.tensor([0, 2, 2]), mode="sum") ** 2).sum()
        + m.a(x).sum()
    ),
    "an embedding bag of means": lambda m, x: (
        (f.embedding_bag(m.ids.view(3, 2), m.table.weight) ** 2).sum() + m.a(x).sum()
    ),
    "one_hot": lambda m, x: (f.one_hot(m.ids, 7).to(x.dtype) @ m.table.weight * m.a(x)).sum(),
    "tied weights": lambda m, x: f.cross_entropy(m.table(m.ids) @ m.table.weight.T, m.ids),
    "functional_call": lambda m, x: (
        torch.func.functional_call(m.a, {"weight": m.w, "bias": m.v}, (x,)).square().sum()
    ),
    "vmap": ends(lambda m, h: torch.vmap(lambda row: row @ m.w)(h)),
    "a wider format": of(lambda m, h: h.double().to(h.dtype)),
    "type promotion": of(lambda m, h: h * m.ids[:, None] + torch.arange(WIDTH)),
    "shapes as numbers": of(lambda m, h: h / math.sqrt(h.size(-1)) * h.shape[0]),
    "a number from a tensor": of(lambda m, h: h * float(torch.tensor(2.5))),
    "new_zeros": of(lambda m, h: torch.cat([h[:, 1:], h.new_zeros(ROWS, 1)], 1)),
    "addition of a list": lambda m, x: sum([m.a(x), m.b(x)], x).square().sum(),
    "asserts": lambda m, x: (torch._assert(x.shape[0] == ROWS, "rows"), m.a(x).sum())[1],
}

REFUSED = {
    "a determinant of complex numbers": ends(lambda m, h: torch.linalg.det(torch.fft.fft(h)).abs()),
    "max_norm": lambda m, x: (f.embedding(m.ids, m.table.weight, max_norm=1.0) * m.a(x)).sum(),
    "a gradient penalty": lambda m, x: (
        torch.func.grad(lambda y: m.b(torch.tanh(m.a(y))).sum())(x).square().sum()
    ),
}
"""Functions that no graph can hold. Each is refused by the line that calls it."""
