"""Measurements beside the peers, never timed tests. `make bench` runs them all."""
