"""Candidates around one operator and between parallel operators: what may be cut, moved and
cancelled."""
