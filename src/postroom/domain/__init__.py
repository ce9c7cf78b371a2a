"""Pure types and pure logic that every room shares. Imports nothing of ours and does no I/O."""
