"""What an equation says: its values over a ring, its work, its kind, and what its backward pass
reads."""
