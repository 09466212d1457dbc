"""Immutable graphs of operator calls, batched and opaque ones among them, hashed by structure."""
