"""What a proof has to be believed on: expansion of graphs from the definitions, laws, comparison.

Nothing here searches. Where a proof may go on in several ways, ``steps`` says which way to take.
``recheck`` rests on this package, on the index language and the operators' equations (``pcg``), and
on a solver.
"""
