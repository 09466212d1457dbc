"""Symbolic shapes and parallel types of a pair of graphs, for all sizes and degrees at once."""
