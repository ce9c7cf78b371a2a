"""The owner's tools of rooms that do not know the Switchboard: actions, rules and web sources."""
