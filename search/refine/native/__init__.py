"""Seconds of plans in machine code: the tables of pieces as arrays, and the loops over them.

In come the pieces of operators, as rows of tables. Out go the steps of a plan, its tasks, and the
seconds of a step. Everything is as exact as the simulation in Python (``search.cost``).
"""
