"""From a model to a plan: families of strategies on every variant of a graph, and the plan that is
returned."""
