"""Code that several commands share: options, output, planners by name, reports."""
