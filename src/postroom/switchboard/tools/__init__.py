"""The tools themselves, thin: what each takes, how it is described, and which service does the work."""
