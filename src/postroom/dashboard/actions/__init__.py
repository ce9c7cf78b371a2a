"""Actions, undo, snoozed mail and approvals."""
