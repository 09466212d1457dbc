"""Search for the fastest plan: split, substitute, map and refine, on one model of what a step
costs.

In comes a graph and a machine, out goes a plan with its derivation. ``split`` finds what repeats
and what lies side by side, ``substitute`` rewrites the graph, ``map`` chooses how every operator is
cut, ``refine`` improves that under simulation; ``plan`` and ``pipeline`` make plans of it.
"""
