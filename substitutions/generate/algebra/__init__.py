"""Algebraic candidates: all small graphs of computing operators, as classes of equal values."""
