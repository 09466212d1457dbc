"""Ranks, groups and processes: how they start, meet, communicate and end."""
