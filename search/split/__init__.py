"""Split: what a graph is made of, blocks that repeat, operators that look alike, branches side by
side, and excerpts, so that each is searched once and by itself."""
