"""Mail put back from the archive into a mailbox: exact bytes, once, and read back at the end."""
