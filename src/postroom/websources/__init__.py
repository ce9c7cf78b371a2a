"""Web sources: what is discovered, fetched politely, and kept as evidence that never changes."""
