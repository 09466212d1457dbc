"""Strategies as applications of the library's rules to an operator, one rule for each cut."""
