"""Ranks, process groups and processes: their start, rendezvous, communication and end."""
