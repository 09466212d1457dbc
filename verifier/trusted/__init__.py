"""What a proof has to be believed on: expansion of graphs from the definitions, laws, comparison.

Nothing here searches: where there are several ways to go, ``steps`` tells which. With the index
language and the operators' equations (``pcg``) and a solver, this is all that ``recheck`` uses.
"""
