"""Every byte of your mail, searchable and provable: SQLite shards by account and year, in files you own.

What `store` reports as stored is on disk. Raw bytes come back exactly as they went in.
"""
