"""Mail: search, one message, and how mail spreads over the tiers."""
