"""Checkpoints in a folder: written completely or not at all, read by any plan, never unpickled."""
