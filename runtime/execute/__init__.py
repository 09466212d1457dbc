"""Execution of a program on one rank, with torch: forward pass, backward pass, update."""
