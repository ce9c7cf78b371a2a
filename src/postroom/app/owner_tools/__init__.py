"""The owner's tools of rooms that do not know the Switchboard: actions, jobs, learned triage, review,
rules, saved searches and web sources."""
