"""Map: strategies of all operators of a graph, chosen together so that they cost least.

The number of devices has prime factors, outermost level first. Each factor is a *mesh axis*. A
*strategy* of an operator gives each mesh axis an index of the operator to cut, or leaves the axis
idle. A strategy so fixes the degrees and the machine view at once. The cost of a resharding follows
from the strategies at both of its ends. The cheapest strategies of all operators together are found
by variable elimination.
"""
