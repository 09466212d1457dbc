"""GSPMD: shardings of a few tensors, by the user, and of all others by propagation."""
