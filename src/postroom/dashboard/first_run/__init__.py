"""The first run: what is left to set up, backups, and the dashboard as an app."""
