"""What the functions of ATen are as operators of ours: one entry a function."""
