"""Execution of plans with torch.distributed: one process a device."""
