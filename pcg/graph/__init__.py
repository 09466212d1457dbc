"""Immutable graphs of operator calls, among them batched and opaque ones, hashed by structure."""
