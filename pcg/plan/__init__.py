"""The plan file: a model, its graph, views and estimates, and the checks of a file that is
loaded."""
