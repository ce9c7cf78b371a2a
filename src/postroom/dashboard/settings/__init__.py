"""Settings, access, and adding accounts."""
