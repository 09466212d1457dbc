"""Mixtures of experts without a loop over experts: routed tokens, and blocks of public models."""
