"""Annealings in machine code: the tables of pieces as arrays, and the loops over them.

In come the pieces of operators, as rows of tables, and states of plans. Out go other states, the
steps and tasks of their plans, and the seconds of a step. Everything is as exact as the simulation
in Python (``search.cost``).
"""
