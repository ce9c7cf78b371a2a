"""Labels as people type them: `my-bills` finds `My Bills`, and `category:updates` Takeout's `Category Updates`."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import cached_property, lru_cache

from postroom.mail.query.operands import CATEGORIES

_SEPARATOR = re.compile(r"[\s/_-]+")
_PLACES = ("inbox", "sent", "draft", "drafts", "spam", "trash", "chat", "archived")
_STATES = ("unread", "opened", "starred", "important")
_SYSTEM = frozenset({*_PLACES, *_STATES, *(f"category-{name}" for name in (*CATEGORIES, "personal"))})


@lru_cache(4_096)
def normal(name: str) -> str:
    return _SEPARATOR.sub("-", unicodedata.normalize("NFC", name.strip().casefold()))


class LabelIndex:
    """The labels of one shard, by their normal form."""

    def __init__(self, labels: Iterable[tuple[int, str]], is_rare: Callable[[int], bool] = lambda label: False) -> None:
        self._is_rare = is_rare
        self._rare: dict[str, bool] = {}
        self._ids: dict[str, int] = {}
        self._spellings: Mapping[str, list[str]] = defaultdict(list)
        for label, name in labels:
            self._ids[name] = label
            self._spellings[normal(name)].append(name)

    def spellings(self, name: str) -> list[str]:
        """The labels of the shard that `name` may mean; none if no message here can have it."""
        return self._spellings.get(normal(name), [])

    def is_rare(self, exact_name: str) -> bool:
        """So few messages have it that they can all be looked at."""
        if exact_name not in self._rare:
            self._rare[exact_name] = self._is_rare(self._ids[exact_name])
        return self._rare[exact_name]

    @cached_property
    def of_the_user(self) -> tuple[str, ...]:
        """The labels that the mailbox's owner made."""
        return tuple(sorted(name for name in self._ids if normal(name) not in _SYSTEM))

    def as_seen_by(self, names: Iterable[tuple[str, bool]]) -> Hashable:
        """All that a query with these labels (wanted ones or not) can tell of the shard: what looks the same to it can
        be searched in the same way."""
        known = [(each, wanted and self.is_rare(each)) for name, wanted in names for each in self.spellings(name)]
        return tuple(known), self.of_the_user
