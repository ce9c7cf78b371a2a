"""Bounds that the arguments of a tool and the code behind it share."""

DEFAULT_RULE_PRIORITY = 100
LONGEST_NOTE = 500
"""Characters of a note with the answer to an approval."""
LONGEST_REASON = 300
"""Characters that say why a message gave trouble."""
MOST_AUDIT_ENTRIES = 500
"""Entries of the audit log on one page."""
MOST_BACKFILLS = 1_000
"""Backfill jobs in one listing."""
MOST_RESULTS = 50
"""Messages that one search on demand takes in."""
