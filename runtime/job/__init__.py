"""Options, results and errors of a training run, as plain data."""
