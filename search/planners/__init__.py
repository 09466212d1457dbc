"""Other systems' ways to choose a plan, each on our graph, rules, prices and simulator: a folder a
system."""
