"""Mail from files into the archive: mbox, Google Takeout, Maildir and `.eml`, streamed, resumable, nothing twice."""
