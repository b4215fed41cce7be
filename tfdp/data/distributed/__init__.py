"""Datasets distributed over the replicas of a strategy: each gets its shard of every batch."""
