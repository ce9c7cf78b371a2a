"""How the API's description speaks of an answer that is a file and not JSON."""

from __future__ import annotations

from typing import Any

_BYTES: dict[str, Any] = {"type": "string", "format": "binary"}


def file_answer(media_type: str, text: str) -> dict[int | str, dict[str, Any]]:
    return {200: {"description": text, "content": {media_type: {"schema": _BYTES}}}}
