"""What a module does while its ``forward`` runs that torch's program of it does not tell."""
