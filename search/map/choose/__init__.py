"""The best strategy for every operator together: costs, resharding, and the least sum of both."""
