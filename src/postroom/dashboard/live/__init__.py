"""Pages that renew themselves: what changed is told by topic, over server-sent events."""
