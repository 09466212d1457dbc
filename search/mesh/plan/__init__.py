"""From a model to a plan: families of strategies, rewrites, overlap, and the plan that is
returned."""
