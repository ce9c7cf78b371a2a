"""Copies whole mailboxes into the archive, keeps them up to date there, and removes archived mail at its source."""
