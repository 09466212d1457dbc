"""Selections by masks of data, at all places: sums leave out places that a mask leaves out."""
