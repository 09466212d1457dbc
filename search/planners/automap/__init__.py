"""Auto-MAP: dimensions of trained variables, decided one after the other by a Q-network."""
