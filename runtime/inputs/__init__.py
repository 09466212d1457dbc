"""The sources of weights and inputs: drawn from a seed, or a user's dataset, which is read
ahead."""
