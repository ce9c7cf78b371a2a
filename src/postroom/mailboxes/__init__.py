"""Mailboxes at their providers. Pace, errors and reachability are shared; each provider is a package. No database."""
