"""What pages and API change: functions of a transaction that do it and write it into the audit log."""
