"""Parallel types: how a tensor is cut, copied and held in partials, and which cuts an equation
allows."""
