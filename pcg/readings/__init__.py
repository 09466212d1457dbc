"""Properties that follow from an equation: values over a ring, work, kind, and the reads of the
backward pass."""
