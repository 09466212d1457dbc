"""Refine: a choice of strategies, improved step by step under the simulation of whole plans, in
which hidden communication does not count.
"""
