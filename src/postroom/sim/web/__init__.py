"""A stand-in web site: a small gazette with sitemaps, archives and lists, and everything that sites do wrong."""

from __future__ import annotations
