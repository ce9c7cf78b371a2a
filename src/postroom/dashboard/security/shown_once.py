"""Secrets that a page shows once after a redirect, so that a reload repeats nothing. They are in memory only, and each
is for the login that made it.
"""

from __future__ import annotations

from collections import OrderedDict

_MOST = 50


class ShownOnce:
    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], str] = OrderedDict()

    def keep(self, session_id: str, name: str, secret: str) -> None:
        """Until it is taken; the oldest make room for it."""
        self._kept[session_id, name] = secret
        while len(self._kept) > _MOST:
            self._kept.popitem(last=False)

    def take(self, session_id: str, name: str) -> str | None:
        """None if it was shown already, or is of another login."""
        return self._kept.pop((session_id, name), None)
