"""Planners of other systems, each on our graph, rules, prices and simulator: one folder for each
system."""
