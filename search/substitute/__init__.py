"""Cost-ordered backtracking over what rewrites make of a graph."""
