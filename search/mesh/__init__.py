"""The search over cuts of whole graphs: every operator on all devices, its cuts as digits of these.

A device's number is written in digits, prime by prime, outermost level first. A *strategy* of an
operator gives each digit an index of the operator to cut, or leaves it idle; so it fixes degrees
and machine view at once. What an edge costs follows from the strategies at both of its ends, and
the cheapest choice for all operators together is found by variable elimination.
"""
