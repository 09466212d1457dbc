"""The offline generator: from operator definitions to candidates, and from these to proved
rules."""
