"""How an equality follows from a library, in a few steps."""
