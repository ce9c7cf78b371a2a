"""`INSERT ... ON CONFLICT`, which both databases know and SQLAlchemy spells once for each."""

from __future__ import annotations

from sqlalchemy import Table
from sqlalchemy.dialects import postgresql, sqlite

from postroom.db.database import Dialect, Tx


def insert(tx: Tx, table: Table) -> postgresql.Insert | sqlite.Insert:
    return postgresql.insert(table) if tx.dialect is Dialect.POSTGRESQL else sqlite.insert(table)
