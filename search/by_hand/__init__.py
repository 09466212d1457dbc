"""Plans by hand: degrees of data, tensor, sequence and pipeline parallelism, as experts state them,
and the plan that they mean. In: a graph, a machine, and the degrees; out: a plan, priced as others.
"""
