"""Conversations across all accounts of an archive: an index beside the mail, made from it and remade at any time."""
