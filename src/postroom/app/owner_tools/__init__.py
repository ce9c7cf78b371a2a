"""The owner's tools of rooms that do not know the Switchboard: actions, definitions, jobs, learned triage, review,
rules, saved searches, settings and web sources."""
