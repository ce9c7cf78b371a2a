"""Talking to Gmail: the client, its quota and errors, login; `sim` is the stand-in."""
