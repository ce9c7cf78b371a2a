"""Pages, PDFs, lists and robots.txt, read in a limited child process: a hostile file harms only its own reading."""

from __future__ import annotations
