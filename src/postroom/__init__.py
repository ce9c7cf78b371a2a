"""Postroom: a self-hosted post room for mail and the web sources worth keeping."""

__version__ = "0.1.0"
