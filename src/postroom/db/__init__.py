"""The control database: SQLite by default, PostgreSQL when one machine is not enough.

A transaction is a plain function of a `Tx`, handed to `Database.write` or `Database.read`. It cannot await, so no
network call ever happens while a write lock is held, and it can be run again after a deadlock.
"""

from postroom.db.database import Database, Dialect, Prepared, Reader, Tx
from postroom.db.opening import connect

__all__ = ["Database", "Dialect", "Prepared", "Reader", "Tx", "connect"]
