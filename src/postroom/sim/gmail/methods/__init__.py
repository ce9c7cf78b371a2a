"""The methods of the API, by collection."""

from __future__ import annotations
