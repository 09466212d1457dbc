"""Files to begin with, which commands print; nothing imports them."""
