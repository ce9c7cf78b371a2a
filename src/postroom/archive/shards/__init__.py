"""The archive as files: one SQLite shard for an account and year, in a folder that you own."""
