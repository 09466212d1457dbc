"""The public face: the command line, and the operations behind it."""
