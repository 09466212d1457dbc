"""Plans and their timelines, for people."""
