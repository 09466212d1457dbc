"""Values of output elements in normal form, and the laws that bring them there."""
