"""Pages, PDF files, lists and robots.txt, read in a limited child process: a hostile one harms its own reading only."""
