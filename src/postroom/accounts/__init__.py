"""The accounts of this installation: who they are, how they are doing, and the quota that all processes share."""
