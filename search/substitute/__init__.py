"""Where the library's rules apply to a graph, and what each application makes of it."""
