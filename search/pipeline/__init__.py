"""Pipeline parallelism: stages of a model on groups of devices, micro-batches one by one.

In comes a model's graph. Out comes the fastest pipeline that is found: outlines by estimates, of
which the most promising are built, priced and improved.
"""
