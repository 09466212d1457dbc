"""Substitute: rewrites of a graph by the library's rules, found by cost-ordered backtracking, each
judged by the strategies that are best after it."""
