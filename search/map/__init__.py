"""Map: strategies of all operators of a graph, chosen together so that they cost least.

The number of devices has prime factors, outermost level first: each is a *mesh axis*. A *strategy*
of an operator gives each mesh axis an index of the operator to cut, or leaves it idle; so it fixes
degrees and machine view at once. What resharding costs follows from the strategies at both of its
ends, and the cheapest choice for all operators together is found by variable elimination.
"""
