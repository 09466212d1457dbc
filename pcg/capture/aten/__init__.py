"""Conversion of ATen functions into operators of the graph, one entry for each function."""
