"""Passes over a mailbox, which hand mail to the Switchboard. No database."""
