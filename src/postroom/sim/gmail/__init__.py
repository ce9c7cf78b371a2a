"""A stand-in for Gmail: a real HTTP server that speaks its REST API, enforces its quota, and fails on command."""

from __future__ import annotations
