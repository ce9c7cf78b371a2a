"""The account's metadata document: everything that is remembered of its sync, as one JSON value with a byte budget."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from postroom.accounts.troubled import TroubledMessage
from postroom.db import Tx
from postroom.domain.errors import Fatal
from postroom.settings import SyncSettings
from postroom.sync.alert_store import AlertRecord, alerts_of
from postroom.sync.state import SyncState, bad_of, get_state, slices_of

Document = Mapping[str, Any]

_LIMITS = (
    "metadata_budget_bytes",
    "metadata_warn",
    "metadata_critical",
    "bad_rate_warn",
    "bad_rate_critical",
    "bad_window",
    "bad_per_hour_critical",
    "throttle_window_s",
    "throttle_cuts_warn",
)


class MetadataFull(Fatal):
    """What is remembered of this account's sync has reached its budget."""


def account_document(tx: Tx, account_id: str, settings: SyncSettings) -> Document:
    """Slices that are done are left out, since the frontier speaks for them; the others are pairs of start and end."""
    state = get_state(tx, account_id)
    return {
        "watermark": state.watermark,
        "walk": _walk(state),
        "slices": [[row.slice.start, row.slice.end] for row in slices_of(tx, account_id) if not row.is_done],
        "bad_messages": {each.key: _bad(each) for each in bad_of(tx, account_id)},
        "counters": dict(state.counters),
        "limits": {name: getattr(settings, name) for name in _LIMITS},
        "alerts": {each.condition: _alert(each) for each in alerts_of(tx, account_id)},
    }


def serialised(document: Document) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def size_of(document: Document) -> int:
    """How many bytes of the budget it takes."""
    return len(serialised(document).encode("utf-8", "surrogatepass"))


def require_room(size: int, settings: SyncSettings) -> None:
    """A sync stops here, with its slices unfinished and so its watermark where it was: nothing is lost by it."""
    budget = settings.metadata_budget_bytes
    if size >= budget:
        raise MetadataFull(
            f"What is remembered of this account's sync takes {size:,} bytes and has reached its budget of {budget:,}. "
            "Nearly always that is the list of bad messages: `postroom sync bad list` tells what is wrong with them, "
            "`postroom sync bad retry` tries them again. Or raise sync.metadata_budget_bytes, then run the sync again."
        )


def _walk(state: SyncState) -> Document:
    return {
        "number": state.walk,
        "started_at": _time(state.walk_started_at),
        "finished_at": _time(state.walked_at),
        "granularity": state.granularity,
        "frontier": state.frontier,
        "until": state.until,
    }


def _bad(message: TroubledMessage) -> Document:
    return {
        "reason": message.reason,
        "first_seen": _time(message.first_seen),
        "last_tried": _time(message.last_tried),
        "tries": message.tries,
    }


def _alert(alert: AlertRecord) -> Document:
    return {
        "level": alert.level,
        "message": alert.message,
        "raised_at": _time(alert.raised_at),
        "last_told_at": _time(alert.last_told_at),
        "cleared_at": _time(alert.cleared_at),
    }


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="seconds")
