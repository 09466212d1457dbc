"""Replays how a plan was derived, from the model's graph and the rules, and believes nothing else.

It has its own matcher, which does not search: a step of a plan says where a rule applies and what
its inputs and symbols are, and that is checked. It shares with the search only the graphs with
their types (``pcg``) and the rules of a library.
"""
