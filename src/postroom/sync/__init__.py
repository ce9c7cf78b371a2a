"""Brings a whole Gmail account into the archive, and keeps it there up to date."""
