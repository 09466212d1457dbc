"""Equality of two values for all sizes: expansion, comparison, and the theorem of local tasks."""
