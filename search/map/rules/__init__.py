"""Strategies as what the library's rules make of an operator, cut by cut."""
