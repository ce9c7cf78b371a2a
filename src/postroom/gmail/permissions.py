"""Which permission each method needs at least, in the words that a person sees on Google's consent page."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from postroom.gmail.quota import Method

_PREFIX = "https://www.googleapis.com/auth/"
READ = _PREFIX + "gmail.readonly"
CHANGE = _PREFIX + "gmail.modify"
SEND = _PREFIX + "gmail.send"
COMPOSE = _PREFIX + "gmail.compose"
INSERT = _PREFIX + "gmail.insert"
LABELS = _PREFIX + "gmail.labels"
EVERYTHING = "https://mail.google.com/"

_MORE_THAN_READING: Mapping[Method, str] = MappingProxyType(
    {
        Method.MESSAGES_INSERT: INSERT,
        Method.MESSAGES_IMPORT: INSERT,
        Method.MESSAGES_SEND: SEND,
        Method.MESSAGES_MODIFY: CHANGE,
        Method.MESSAGES_BATCH_MODIFY: CHANGE,
        Method.MESSAGES_TRASH: CHANGE,
        Method.MESSAGES_UNTRASH: CHANGE,
        Method.MESSAGES_DELETE: EVERYTHING,
        Method.MESSAGES_BATCH_DELETE: EVERYTHING,
        Method.LABELS_CREATE: LABELS,
        Method.LABELS_UPDATE: LABELS,
        Method.LABELS_PATCH: LABELS,
        Method.LABELS_DELETE: LABELS,
        Method.DRAFTS_CREATE: COMPOSE,
        Method.DRAFTS_UPDATE: COMPOSE,
        Method.DRAFTS_SEND: COMPOSE,
        Method.DRAFTS_DELETE: COMPOSE,
    }
)


def least_scope(method: Method) -> str:
    return _MORE_THAN_READING.get(method, READ)
