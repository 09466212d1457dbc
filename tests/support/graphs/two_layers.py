"""Two layers, whole and cut by hand, for runs that tests disturb."""

from __future__ import annotations

MODEL = """
x = input[12, 8]
w1 = weight[8, 12]
w2 = weight[12, 6]
y = matmul(relu(matmul(x, w1)), w2)
return mean_loss(multiply(y, y))
"""
BY_ROWS = """
x = input[12, 8]
w1 = weight[8, 12]
w2 = weight[12, 6]
h = relu(matmul(partition(x, dim=0, degree={n}), replicate(w1, degree={n})))
y = combine(matmul(h, replicate(w2, degree={n})), dim=0, degree={n})
return mean_loss(multiply(y, y))
"""
BY_COLUMNS = """
x = input[12, 8]
w1 = weight[8, 12]
w2 = weight[12, 6]
h = relu(matmul(replicate(x, degree={n}), partition(w1, dim=1, degree={n})))
y = reduce(matmul(h, partition(w2, dim=0, degree={n})), degree={n})
return mean_loss(multiply(y, y))
"""
BY_SLICES = """
x = input[12, 8]
w1 = weight[8, 12]
w2 = weight[12, 6]
h = relu(matmul(pipeline(x, dim=0, degree=4), w1))
y = matmul(h, w2)
squares = multiply(y, y)
return mean_loss(batch(squares, dim=0, degree=4))
"""
"""The second stage is the second matmul and the operators after it."""
