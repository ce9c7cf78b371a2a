"""The tables of the control database, one module an area. Migrations make them; a test holds the two together."""

from postroom.db.tables import accounts, queue, sync
from postroom.db.tables.base import metadata

__all__ = ["accounts", "metadata", "queue", "sync"]
