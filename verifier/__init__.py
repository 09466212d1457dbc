"""Proof and refutation of equalities between graphs, for all sizes; it knows no rules."""
