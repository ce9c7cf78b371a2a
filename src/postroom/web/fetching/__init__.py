"""Fetching from the web: safe (public addresses only), polite (robots.txt, delays) and bounded (size, time)."""

from __future__ import annotations
