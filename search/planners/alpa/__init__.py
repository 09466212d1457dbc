"""Alpa: strategies by an integer program within a stage, stages by dynamic programming."""
