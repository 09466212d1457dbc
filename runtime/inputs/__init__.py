"""Where weights and inputs come from: drawn from a seed, or a user's dataset, read ahead."""
