"""The text of pages and PDF files, read in a child process: a hostile file harms nobody but its own reader."""
