"""IMAP as a mailbox."""
