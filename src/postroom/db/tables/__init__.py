"""The tables of the control database, one module an area. Migrations make them; a test holds the two together."""

from postroom.db.tables import accounts, actions, backfill, dashboard, mail, queue, switchboard, sync, triage, web
from postroom.db.tables.base import metadata

__all__ = [
    "accounts",
    "actions",
    "backfill",
    "dashboard",
    "mail",
    "metadata",
    "queue",
    "switchboard",
    "sync",
    "triage",
    "web",
]
