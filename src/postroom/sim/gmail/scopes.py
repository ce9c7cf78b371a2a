"""Which scopes allow which methods, as in Google's discovery document."""

from __future__ import annotations

FULL = "https://mail.google.com/"
_GMAIL = "https://www.googleapis.com/auth/gmail."
READONLY = _GMAIL + "readonly"
MODIFY = _GMAIL + "modify"
METADATA = _GMAIL + "metadata"
LABELS = _GMAIL + "labels"
INSERT = _GMAIL + "insert"
SEND = _GMAIL + "send"
COMPOSE = _GMAIL + "compose"

ALL = frozenset({FULL, READONLY, MODIFY, METADATA, LABELS, INSERT, SEND, COMPOSE})

TO_ERASE = frozenset({FULL})
TO_CHANGE = frozenset({FULL, MODIFY})
TO_READ_BODIES = frozenset({FULL, MODIFY, READONLY})
TO_READ = frozenset({FULL, MODIFY, READONLY, METADATA})
TO_SEE_PROFILE = TO_READ | {COMPOSE}
TO_INSERT = frozenset({FULL, MODIFY, INSERT})
TO_COMPOSE = frozenset({FULL, MODIFY, COMPOSE})
TO_SEND = TO_COMPOSE | {SEND}
TO_SEE_DRAFTS = TO_READ_BODIES | {COMPOSE}
TO_CHANGE_LABELS = frozenset({FULL, MODIFY, LABELS})
TO_SEE_LABELS = TO_READ | {LABELS}
