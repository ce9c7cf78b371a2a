"""Base64 as Google's APIs write it: the URL alphabet, with or without padding, and nothing else in between."""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode

_ALPHABET = re.compile(r"[A-Za-z0-9_-]*={0,2}")


def decode(text: str) -> bytes:
    """The bytes; ValueError if the text is not Base64, which the standard library would partly ignore."""
    bare = text.rstrip("=")
    if not _ALPHABET.fullmatch(text) or len(bare) % 4 == 1:
        raise ValueError("not Base64 in the URL alphabet")
    return urlsafe_b64decode(bare + "=" * (-len(bare) % 4))
