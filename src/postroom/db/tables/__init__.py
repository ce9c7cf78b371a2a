"""The tables of the control database, one module an area. Migrations make them; a test holds the two together."""

from postroom.db.tables import access, accounts, mail, queue, triage, web
from postroom.db.types import metadata

__all__ = ["access", "accounts", "mail", "metadata", "queue", "triage", "web"]
