"""Commands about mailboxes and the archive."""
