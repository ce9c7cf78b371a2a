"""A stand-in for Discord: one channel, its messages and buttons, on this machine only."""
