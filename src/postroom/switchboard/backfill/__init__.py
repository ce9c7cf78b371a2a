"""Backfill: history recovered by connectors that own no state, under a budget that cannot be broken.

A job is claimed by a lease with a fence, moved by a table of legal transitions, slowed by a sliding hour, stopped by
a daily cap, and switched off by one switch. Every step is one transaction and stands in the audit log.
"""
