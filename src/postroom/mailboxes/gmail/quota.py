"""Quota units that Gmail charges for each method, and the allowance a minute, under both sets of limits in force.

Cloud projects that used the API before May 2026 keep the `legacy` figures; newer ones get `2026`, where reading a
message costs four times as much from a smaller allowance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

MINUTE_S = 60.0


class GmailMethod(StrEnum):
    """A method of the Gmail API, by its name in the discovery document (without `gmail.users.`)."""

    GET_PROFILE = "getProfile"
    WATCH = "watch"
    STOP = "stop"
    MESSAGES_LIST = "messages.list"
    MESSAGES_GET = "messages.get"
    MESSAGES_INSERT = "messages.insert"
    MESSAGES_IMPORT = "messages.import"
    MESSAGES_SEND = "messages.send"
    MESSAGES_MODIFY = "messages.modify"
    MESSAGES_BATCH_MODIFY = "messages.batchModify"
    MESSAGES_BATCH_DELETE = "messages.batchDelete"
    MESSAGES_TRASH = "messages.trash"
    MESSAGES_UNTRASH = "messages.untrash"
    MESSAGES_DELETE = "messages.delete"
    ATTACHMENTS_GET = "messages.attachments.get"
    THREADS_LIST = "threads.list"
    THREADS_GET = "threads.get"
    LABELS_LIST = "labels.list"
    LABELS_GET = "labels.get"
    LABELS_CREATE = "labels.create"
    LABELS_UPDATE = "labels.update"
    LABELS_PATCH = "labels.patch"
    LABELS_DELETE = "labels.delete"
    HISTORY_LIST = "history.list"
    DRAFTS_LIST = "drafts.list"
    DRAFTS_GET = "drafts.get"
    DRAFTS_CREATE = "drafts.create"
    DRAFTS_UPDATE = "drafts.update"
    DRAFTS_SEND = "drafts.send"
    DRAFTS_DELETE = "drafts.delete"


class ProfileName(StrEnum):
    LEGACY = "legacy"
    MAY_2026 = "2026"


@dataclass(frozen=True)
class QuotaProfile:
    """Units an account may use in any minute, and what each method takes of them."""

    name: ProfileName
    units_per_minute: int
    costs: Mapping[GmailMethod, int]

    def cost(self, method: GmailMethod) -> int:
        return self.costs[method]

    def reading_units(self, listed: int, fetched: int) -> int:
        """For listing so many messages and fetching so many, be it their headers or all of them."""
        pages = -(-listed // 500)
        return pages * self.cost(GmailMethod.MESSAGES_LIST) + fetched * self.cost(GmailMethod.MESSAGES_GET)


_LEGACY_COSTS: dict[GmailMethod, int] = {
    GmailMethod.GET_PROFILE: 1,
    GmailMethod.WATCH: 100,
    GmailMethod.STOP: 50,
    GmailMethod.MESSAGES_LIST: 5,
    GmailMethod.MESSAGES_GET: 5,
    GmailMethod.MESSAGES_INSERT: 25,
    GmailMethod.MESSAGES_IMPORT: 25,
    GmailMethod.MESSAGES_SEND: 100,
    GmailMethod.MESSAGES_MODIFY: 5,
    GmailMethod.MESSAGES_BATCH_MODIFY: 50,
    GmailMethod.MESSAGES_BATCH_DELETE: 50,
    GmailMethod.MESSAGES_TRASH: 5,
    GmailMethod.MESSAGES_UNTRASH: 5,
    GmailMethod.MESSAGES_DELETE: 10,
    GmailMethod.ATTACHMENTS_GET: 5,
    GmailMethod.THREADS_LIST: 10,
    GmailMethod.THREADS_GET: 10,
    GmailMethod.LABELS_LIST: 1,
    GmailMethod.LABELS_GET: 1,
    GmailMethod.LABELS_CREATE: 5,
    GmailMethod.LABELS_UPDATE: 5,
    GmailMethod.LABELS_PATCH: 5,
    GmailMethod.LABELS_DELETE: 5,
    GmailMethod.HISTORY_LIST: 2,
    GmailMethod.DRAFTS_LIST: 5,
    GmailMethod.DRAFTS_GET: 5,
    GmailMethod.DRAFTS_CREATE: 10,
    GmailMethod.DRAFTS_UPDATE: 15,
    GmailMethod.DRAFTS_SEND: 100,
    GmailMethod.DRAFTS_DELETE: 10,
}
_CHANGED_IN_MAY_2026: dict[GmailMethod, int] = {
    GmailMethod.MESSAGES_GET: 20,
    GmailMethod.MESSAGES_TRASH: 20,
    GmailMethod.ATTACHMENTS_GET: 20,
    GmailMethod.THREADS_GET: 40,
}

PROFILES: Mapping[ProfileName, QuotaProfile] = MappingProxyType(
    {
        ProfileName.LEGACY: QuotaProfile(ProfileName.LEGACY, 15_000, MappingProxyType(_LEGACY_COSTS)),
        ProfileName.MAY_2026: QuotaProfile(
            ProfileName.MAY_2026, 6_000, MappingProxyType(_LEGACY_COSTS | _CHANGED_IN_MAY_2026)
        ),
    }
)
