"""Parallel computation graphs: operators as index equations, tensors, machines and plans."""
