"""Parallel types: how a tensor is cut, copied and held in partials, and what an equation lets be
cut."""
