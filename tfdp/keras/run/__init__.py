"""Variables that replicas make and write, and the order of side effects."""
