"""The training loop of a rank: data, optimizer, steps, measurements, and the check against training
on one process."""
