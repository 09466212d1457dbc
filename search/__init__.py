"""Search for the fastest plan: split, substitute, map and refine, on one model of what a step
costs.

The search takes a graph and a machine, and returns a plan with its derivation. ``split`` finds
blocks that repeat and branches that lie side by side. ``substitute`` rewrites the graph. ``map``
chooses how each operator is cut. ``refine`` improves this choice under simulation. ``plan`` and
``pipeline`` turn the result into plans.
"""
