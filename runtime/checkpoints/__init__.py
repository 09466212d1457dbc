"""Checkpoints in a folder: written whole or not at all, read back on any plan, never unpickled."""
