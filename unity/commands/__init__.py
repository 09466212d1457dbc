"""What each command does once its options are read: options in, lines and files out."""
