"""Web sources, runs and kept pages."""
