"""Talking to Gmail: the client, its quota and errors, login, parsing and composing of mail; `sim` is the stand-in."""
