"""Gmail names a label by an id; the archive and people know it by its name."""

from __future__ import annotations

from collections.abc import Iterable

from postroom.gmail.client import GmailClient


class LabelBook:
    """Looks labels up once, and again when one turns up that is not known or when told that some may have changed."""

    def __init__(self, client: GmailClient) -> None:
        self._client = client
        self._names: dict[str, str] = {}

    def forget(self) -> None:
        """A label may have been given another name."""
        self._names = {}

    async def names(self, label_ids: Iterable[str]) -> frozenset[str]:
        """Mail from the archive has names already; they stay what they are."""
        wanted = frozenset(label_ids)
        if unknown := wanted - self._names.keys():
            labels = await self._client.list_labels()
            # A label may be gone before its last change is read; then its id is all that is left of it.
            self._names |= {each: each for each in (*unknown, *(label.name for label in labels))}
            self._names |= {label.id: label.name for label in labels}
        return frozenset(self._names[each] for each in wanted)
