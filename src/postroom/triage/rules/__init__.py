"""Deterministic rules: condition trees that are checked when saved, compiled once, and cannot hang or break others.

`reading` makes conditions of JSON and names the place of a fault; `engine` finds the first rule that matches a message;
`store` and `files` keep rules, `book` has the current ones at hand, `trying` replays one over the archive.
"""
