"""Operators cut along every free index, against training on one process."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.distributed

END = """
error = add(y, scale(target, factor=-1.0))
loss = mean_loss(multiply(error, error))
"""

CUT_END = """
error = add(y, scale(partition(target, dim=0, degree=4), factor=-1.0))
loss = reduce(mean_loss(multiply(error, error)), degree=4)
return loss, combine(y, dim=0, degree=4)
"""

NORM = """
ids = input[8] below 12
table = weight[12, 8]
gain = weight[8]
bias = weight[8]
target = input[8, 8]
"""


def test_embedding_softmax_and_layer_norm_cut_by_rows(agree):
    model = f"""{NORM}
        y = softmax(layer_norm(gelu(embedding(ids, table)), gain, bias, eps=0.00001), axis=1)
        {END}
        return loss, y
        """
    agree(
        model,
        f"""{NORM}
        rows = gelu(embedding(partition(ids, dim=0, degree=4), replicate(table, degree=4)))
        n = layer_norm(rows, replicate(gain, degree=4), replicate(bias, degree=4), eps=0.00001)
        y = softmax(n, axis=1)
        {CUT_END}
        """,
    )


def test_embedding_cut_by_vocabulary(agree):
    """Each device looks up the ids of its own rows. The other rows of its partial sum are zeros."""
    model = f"""{NORM}
        y = layer_norm(embedding(ids, table), gain, bias, eps=0.00001)
        {END}
        return loss, y
        """
    agree(
        model,
        f"""{NORM}
        found = embedding(replicate(ids, degree=4), partition(table, dim=0, degree=4))
        y = layer_norm(reduce(found, degree=4), gain, bias, eps=0.00001)
        {END}
        return loss, y
        """,
    )


def test_embedding_cut_by_vocabulary_and_by_features(agree):
    model = f"""{NORM}
        y = layer_norm(embedding(ids, table), gain, bias, eps=0.00001)
        {END}
        return loss, y
        """
    agree(
        model,
        f"""{NORM}
        cut = partition(partition(table, dim=0, degree=2), dim=1, degree=2)
        found = embedding(replicate(ids, degree=4), cut)
        y = layer_norm(combine(reduce(found, degree=2), dim=1, degree=2), gain, bias, eps=0.00001)
        {END}
        return loss, y
        """,
    )


def test_softmax_along_the_first_dimension_cut_along_the_second(agree):
    agree(
        f"x = input[8, 8]\nw = weight[8, 8]\ntarget = input[8, 8]\n"
        f"y = softmax(matmul(x, w), axis=0){END}return loss, y",
        f"x = input[8, 8]\nw = weight[8, 8]\ntarget = input[8, 8]\n"
        "y4 = softmax(matmul(replicate(x, degree=4), partition(w, dim=1, degree=4)), axis=0)\n"
        f"y = combine(y4, dim=1, degree=4){END}return loss, y",
    )


def test_join_makes_partials_of_two_products(agree):
    """The operands of the sum are computed on devices 0-1 and 2-3 and never meet until reduced."""
    leaves = """
        x = input[8, 12]
        z = input[8, 4]
        a = weight[12, 8]
        b = weight[4, 8]
        target = input[8, 8]
        """
    agree(
        f"{leaves}y = relu(add(matmul(x, a), matmul(z, b))){END}return loss, y",
        f"""{leaves}
        left = matmul(partition(x, dim=0, degree=2), replicate(a, degree=2))
        right = matmul(partition(z, dim=0, degree=2), replicate(b, degree=2))
        both = join(left, right)
        y = relu(replicate(combine(reduce(both, degree=2), dim=0, degree=2), degree=4))
        error = add(y, scale(replicate(target, degree=4), factor=-1.0))
        loss = mean_loss(multiply(error, error))
        return loss, y
        """,
        t5=2,
    )


def test_attention_cut_by_batch_and_by_heads(agree):
    """unflatten, transpose, batch_matmul, softmax and flatten, on a two by two grid."""

    def attention(x, wq, wk, wo):
        return f"""
        q = transpose(unflatten(matmul({x}, {wq}), axis=2, outer=2, inner=4), dim0=1, dim1=2)
        k = transpose(unflatten(matmul({x}, {wk}), axis=2, outer=2, inner=4), dim0=1, dim1=2)
        scores = batch_matmul(q, transpose(k, dim0=2, dim1=3))
        mixed = batch_matmul(softmax(scale(scores, factor=0.5), axis=3), k)
        o = matmul(flatten(transpose(mixed, dim0=1, dim1=2), axis=2), {wo})
        """

    leaves = """
        x = input[4, 3, 8]
        wq = weight[8, 8]
        wk = weight[8, 8]
        wo = weight[8, 8]
        target = input[4, 3, 8]
        """
    agree(
        f"{leaves}{attention('x', 'wq', 'wk', 'wo')}y = o{END}return loss, y",
        f"""{leaves}
        x4 = replicate(partition(x, dim=0, degree=2), degree=2)
        q4 = replicate(partition(wq, dim=1, degree=2), degree=2)
        k4 = replicate(partition(wk, dim=1, degree=2), degree=2)
        o4 = replicate(partition(wo, dim=0, degree=2), degree=2)
        {attention("x4", "q4", "k4", "o4")}
        y = reduce(o, degree=2)
        error = add(y, scale(partition(target, dim=0, degree=2), factor=-1.0))
        loss = reduce(mean_loss(multiply(error, error)), degree=2)
        return loss, y
        """,
    )


def test_concat_and_split_cut_along_the_other_dimension(agree):
    """A split of the concat at another place, so that both outputs mix both inputs."""
    leaves = """
        x = input[8, 12]
        a = weight[12, 4]
        b = weight[12, 8]
        target = input[8, 6]
        """
    agree(
        f"""{leaves}
        left, right = split(concat(matmul(x, a), relu(matmul(x, b)), axis=1), axis=1, at=6)
        y = multiply(left, gelu(right))
        {END}
        return loss, y, right
        """,
        f"""{leaves}
        x4 = partition(x, dim=0, degree=4)
        first = matmul(x4, replicate(a, degree=4))
        second = relu(matmul(x4, replicate(b, degree=4)))
        left, right = split(concat(first, second, axis=1), axis=1, at=6)
        y = multiply(left, gelu(right))
        error = add(y, scale(partition(target, dim=0, degree=4), factor=-1.0))
        loss = reduce(mean_loss(multiply(error, error)), degree=4)
        return loss, combine(y, dim=0, degree=4), right
        """,
    )


def test_an_output_of_split_that_nobody_reads(agree):
    agree(
        f"x = input[8, 8]\nw = weight[8, 10]\ntarget = input[8, 6]\n"
        f"left, right = split(matmul(x, w), axis=1, at=4)\ny = right{END}return loss, y",
        f"x = input[8, 8]\nw = weight[8, 10]\ntarget = input[8, 6]\n"
        "rows = matmul(partition(x, dim=0, degree=4), replicate(w, degree=4))\n"
        f"left, right = split(rows, axis=1, at=4)\ny = right{CUT_END}",
    )


def test_flatten_cut_along_its_leading_index(agree):
    agree(
        f"x = input[4, 2, 8]\nw = weight[8, 8]\ntarget = input[8, 8]\n"
        f"y = flatten(matmul(x, w), axis=0){END}return loss, y",
        f"x = input[4, 2, 8]\nw = weight[8, 8]\ntarget = input[8, 8]\n"
        "rows = matmul(partition(x, dim=0, degree=4), replicate(w, degree=4))\n"
        f"y = flatten(rows, axis=0){CUT_END}",
    )


def test_unflatten_cut_along_its_leading_index(agree):
    agree(
        f"x = input[8, 8]\nw = weight[8, 8]\ntarget = input[4, 2, 8]\n"
        f"y = unflatten(matmul(x, w), axis=0, outer=4, inner=2){END}return loss, y",
        f"x = input[8, 8]\nw = weight[8, 8]\ntarget = input[4, 2, 8]\n"
        "rows = matmul(partition(x, dim=0, degree=4), replicate(w, degree=4))\n"
        f"y = unflatten(rows, axis=0, outer=4, inner=2){CUT_END}",
    )


def test_partials_pass_through_linear_operators(agree):
    """Scale, transpose, split and concat of partial sums, reduced only before the relu."""
    leaves = "x = input[8, 8]\nw = weight[8, 8]\ntarget = input[8, 8]\n"

    def linear(value):
        return f"""
        left, right = split(transpose(scale({value}, factor=2.0), dim0=0, dim1=1), axis=1, at=2)
        turned = concat(right, left, axis=1)
        """

    agree(
        f"{leaves}{linear('matmul(x, w)')}y = relu(turned){END}return loss, y",
        f"""{leaves}
        parts = matmul(partition(x, dim=1, degree=4), partition(w, dim=0, degree=4))
        {linear("parts")}
        y = relu(partition(reduce(turned, degree=4), dim=0, degree=4))
        {CUT_END}
        """,
    )


def test_losses_as_partial_sums_and_as_copies(agree):
    """Partials that are never reduced still mean their sum. Copies of a loss count once."""
    leaves = "x = input[8, 8]\nw = weight[8, 8]\n"
    model = f"{leaves}loss = sum_loss(gelu(matmul(x, w)))\nreturn loss"
    agree(
        model,
        f"{leaves}loss = sum_loss(gelu(matmul(partition(x, dim=0, degree=4), "
        "replicate(w, degree=4))))\nreturn loss",
    )
    agree(
        model,
        f"{leaves}loss = sum_loss(gelu(matmul(replicate(x, degree=4), "
        "replicate(w, degree=4))))\nreturn loss",
    )


def test_a_weight_used_twice_in_different_cuts(agree):
    leaves = "x = input[8, 8]\nw = weight[8, 8]\ntarget = input[8, 8]\n"
    agree(
        f"{leaves}y = matmul(relu(matmul(x, w)), w){END}return loss, y",
        f"""{leaves}
        h = relu(matmul(replicate(x, degree=4), partition(w, dim=1, degree=4)))
        y = reduce(matmul(h, partition(w, dim=0, degree=4)), degree=4)
        {END}
        return loss, y
        """,
    )


def test_outputs_that_are_leaves_and_copies(agree):
    leaves = "x = input[8, 8]\nw = weight[8, 8]\n"
    agree(
        f"{leaves}loss = mean_loss(matmul(x, w))\nreturn loss, w, x",
        f"{leaves}loss = reduce(mean_loss(matmul(partition(x, dim=0, degree=4), "
        "replicate(w, degree=4))), degree=4)\n"
        "return replicate(loss, degree=4), replicate(w, degree=4), partition(x, dim=1, degree=2)",
    )


def test_weights_that_the_loss_does_not_depend_on(agree):
    leaves = "x = input[8, 8]\nw = weight[8, 8]\nv = weight[8, 8]\n"
    report = agree(
        f"{leaves}h = matmul(x, w)\nloss = mean_loss(h)\nreturn loss, matmul(h, v)",
        f"{leaves}h = matmul(partition(x, dim=0, degree=4), replicate(w, degree=4))\n"
        "loss = reduce(mean_loss(h), degree=4)\n"
        "return loss, matmul(combine(h, dim=0, degree=4), v)",
    )
    assert {c.name for c in report.comparisons if c.kind == "weight"} == {"v", "w"}
