"""Measurements beside the peers, started with `make bench`. None of this is part of the product."""
