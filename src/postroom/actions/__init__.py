"""Acting on mail: execute, undo, snooze, send, ask for approval. Every action is a row, recorded before and after it
happens."""
