"""A plan as a torch module, whose parameters are this rank's shards, for a user's training loop."""
