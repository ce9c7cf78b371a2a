"""Commands for the installation itself: jobs, settings, tokens, audit log, backups, check-up."""
