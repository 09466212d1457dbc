"""Replays how a plan was derived, from the model's graph and the rules, and believes nothing else.

It has a matcher of its own, that searches for nothing: a step says where a rule stands and what its
inputs and symbols are, and that is checked. What it shares with the search is the graph with its
types (``pcg``) and the rules as a library holds them.
"""
