"""The training loop of a rank: data, optimizer, steps, measurements, and the check on one
process."""
