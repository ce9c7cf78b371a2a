"""Other programs that do what we measure: queues, notmuch, and rules evaluated naively."""
