"""The work of each command: options in, lines and files out."""
