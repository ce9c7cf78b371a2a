"""The one road to the web: safe (no address that is not public), polite (robots, delays) and bounded (size, time)."""
