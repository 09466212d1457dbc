"""Refine: a choice of strategies, improved under the simulation of whole plans, where what is
hidden does not count, as long as it gains.
"""
