"""Approvals in Discord: the bot's calls, the questions it asks, and the answers that Discord sends back, signed."""
