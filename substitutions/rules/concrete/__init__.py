"""The concrete rules for a graph, made from general rules: in come a library's rules and a graph,
out go rules at the graph's ranks and for its operators, by the root of the side that is matched."""
