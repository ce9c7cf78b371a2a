"""Web sources: pages are discovered, fetched politely, and kept as evidence that never changes."""

from __future__ import annotations
