"""Running and differentiating a program on one rank, with torch."""
