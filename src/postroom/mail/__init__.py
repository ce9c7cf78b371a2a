"""Mail itself, independent of its provider: reading any bytes as a message, addresses in their compared form, writing
replies.

Pure: bytes in, values out, no I/O. Gmail's client, its stand-in, the archive and triage all stand on it.
"""
