"""What a module says while its ``forward`` runs, and the program that torch writes then forgets."""
