"""Built pipelines: an outline as a graph on devices, its price, and changes that make it faster.

In come outlines of a pipeline: bounds of its stages, and strategies within each. Out come graphs
with their schedules, seconds and bytes, and outlines with strategies that suit the bounds.
"""
