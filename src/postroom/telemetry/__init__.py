"""Logs and metrics: what happened, without ever telling a secret or the content of mail."""
