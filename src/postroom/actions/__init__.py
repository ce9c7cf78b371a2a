"""Acting on mail: execute, undo, snooze, send, ask for approval. A row for every deed, before and after."""
