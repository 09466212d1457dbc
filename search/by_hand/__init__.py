"""Plans by hand: degrees of parallelism, as experts state them, and the plan that they mean."""
