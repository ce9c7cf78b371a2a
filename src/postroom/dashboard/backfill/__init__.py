"""Backfill jobs, offers and the kill switch."""
