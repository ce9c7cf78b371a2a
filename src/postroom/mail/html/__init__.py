"""HTML of mail: its text, its tags, and the remote pictures that it wants. Pure."""
