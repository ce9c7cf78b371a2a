"""The archive as tables in PostgreSQL, for installations of several hosts: every process may write, and none owns it.

It keeps the promises of the file archive: what `store` reports is on disk, raw bytes come back exactly, the same query
finds the same mail. Its tables stand in a schema of their own, `archive`, made when it is first opened.
"""
