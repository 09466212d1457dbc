"""Rule files of other systems, read into the index language."""
