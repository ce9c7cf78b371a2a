"""The audit log: its page, and names for what it knows by ids."""
