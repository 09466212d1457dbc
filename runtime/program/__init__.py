"""Lowering of a plan to one program a rank. A program says all that its rank does in a step."""
