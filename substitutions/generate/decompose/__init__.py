"""Operators with an inner reduction as graphs of primitive ones, compiled from their equations."""
