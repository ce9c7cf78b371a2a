"""Pure types and pure logic that every package shares. Imports nothing of ours and does no I/O."""
