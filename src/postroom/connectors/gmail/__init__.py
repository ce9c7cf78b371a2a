"""The passes over a Gmail mailbox: live, the gap after an expired history, backfill, on demand, and the sent folder."""
