"""Programs of one device: traced, partitioned, called by all replicas."""
