"""Lowering of a plan to one program per rank: all instructions of the rank in a training step."""
