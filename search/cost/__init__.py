"""The cost of a schedule: seconds of computation and communication, and bytes of memory, on each
device."""
