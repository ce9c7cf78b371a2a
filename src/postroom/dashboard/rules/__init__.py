"""Rules, their editor and trial, and the owner's guidance for the model."""
