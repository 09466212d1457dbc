"""The public face: the command line. Each module here declares the options of one command."""
