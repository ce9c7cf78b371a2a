"""Column types whose Python side is the same on both databases, and the metadata that every table registers on."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, ColumnElement, DateTime, Index, MetaData, String, Text, TextClause, Uuid
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine

from postroom.domain.clock import utc_text


class Instant(TypeDecorator[datetime]):
    """An aware instant in UTC: `timestamptz` on PostgreSQL, fixed-width ISO text on SQLite."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(DateTime(timezone=True) if dialect.name == "postgresql" else Text())

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        if value is None or dialect.name == "postgresql":
            return value
        return utc_text(value)

    def bind_processor(self, dialect: Dialect) -> Any:
        """On SQLite without the two calls that SQLAlchemy makes around `process_bind_param`."""
        return super().bind_processor(dialect) if dialect.name == "postgresql" else _as_text

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        return super().result_processor(dialect, coltype) if dialect.name == "postgresql" else _as_instant

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if isinstance(value, datetime):
            return value.astimezone(UTC)
        return datetime.fromisoformat(value)


def _as_text(value: datetime | None) -> str | None:
    return None if value is None else utc_text(value)


def _as_instant(value: str | None) -> datetime | None:
    return None if value is None else datetime.fromisoformat(value)


class Id(TypeDecorator[str]):
    """A UUID, a text in Python: `uuid` on PostgreSQL, text on SQLite."""

    impl = String(36)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(Uuid(as_uuid=False) if dialect.name == "postgresql" else String(36))


class Json(TypeDecorator[Any]):
    """Objects and lists: `jsonb` on PostgreSQL, text on SQLite. None is NULL, so that "not known" is asked for the
    same way as in any other column."""

    impl = JSON(none_as_null=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name != "postgresql":
            return dialect.type_descriptor(JSON(none_as_null=True))
        from sqlalchemy.dialects.postgresql import JSONB

        return dialect.type_descriptor(JSONB(none_as_null=True))


metadata = MetaData(
    naming_convention={
        "ix": "%(table_name)s_%(column_0_name)s_idx",
        "uq": "%(table_name)s_%(column_0_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s_check",
        "fk": "%(table_name)s_%(column_0_name)s_fkey",
        "pk": "%(table_name)s_pkey",
    }
)


def partial_index(name: str, *columns: ColumnElement[Any] | str, where: TextClause, unique: bool = False) -> Index:
    """An index over the rows that meet a condition. `all_tables` hands the condition to the dialects: an index that
    names it for PostgreSQL imports that dialect."""
    return Index(name, *columns, unique=unique, info={"where": where})
