"""Example files that commands print. Nothing imports them."""
