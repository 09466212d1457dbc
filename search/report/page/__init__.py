"""A page about a plan for a browser: one file that needs nothing else."""
