"""Split: the parts of a graph that are searched once and by themselves: blocks that repeat,
operators that look alike, branches side by side, and excerpts."""
