"""Costs in machine code: the time of messages between few devices, which searches ask for most.

In come layouts, as arrays. Out go seconds, the same as in Python (``search.cost``). Nothing here is
loaded before it is needed, as numba takes long to load.
"""
