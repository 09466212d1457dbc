"""What a run is asked to do and what it answers, as plain data."""
