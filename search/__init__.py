"""Search for the fastest plan: rewrites, machine views and the cost model that judges them."""
