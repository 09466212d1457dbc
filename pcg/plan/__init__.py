"""The plan file: a model, its graph, views and estimates, and the checks of what is read from
it."""
