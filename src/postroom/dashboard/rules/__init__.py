"""Rules, their editor and trial, learned triage, and the owner's guidance for the model."""
