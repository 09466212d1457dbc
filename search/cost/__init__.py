"""What a schedule costs: seconds of computation and communication, and bytes of memory, on each
device."""
