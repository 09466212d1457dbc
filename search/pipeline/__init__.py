"""Pipeline parallelism: stages of a model on groups of devices, micro-batches one by one."""
