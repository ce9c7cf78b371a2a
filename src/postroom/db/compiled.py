"""Prepared statements as drivers take them: compiled once, because SQLAlchemy takes longer for each than its run."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping, Sequence
from typing import Any

from postroom.db.database import Prepared


class CompiledStatement:
    """A prepared statement as the driver takes it, with what turns its parameters and rows into those of our types."""

    def __init__(self, statement: Any, dialect: Any, given: Sequence[str]) -> None:
        compiled = statement.compile(dialect=dialect, column_keys=list(given))
        if compiled.insert_prefetch or compiled.update_prefetch or compiled.post_compile_params:
            raise AssertionError(f"it cannot be prepared: {compiled}")
        self._named_sql = str(compiled)
        constants, to_driver = compiled.construct_params(_check=False), compiled._bind_processors
        self._is_positional = bool(compiled.positional)
        names = (compiled.positiontup or ()) if self._is_positional else tuple(constants)
        numbers = {name: f"${number}" for number, name in enumerate(names, 1)}
        self._sql = self._named_sql if self._is_positional else self._named_sql % numbers
        self._parameters = [(name, constants[name]) for name in names]
        self._binders = [(at, to_driver[name]) for at, name in enumerate(names) if name in to_driver]
        columns = compiled._result_columns
        self._row: Any = namedtuple("_row", [each.keyname for each in columns], rename=True)  # type: ignore[misc]
        readers = [column.type._cached_result_processor(dialect, None) for column in columns]
        self._readers = [(at, read) for at, read in enumerate(readers) if read is not None]

    def run(self, cursor: Any, given: Mapping[str, Any]) -> Sequence[Any]:
        """`cursor` takes values in order, which are `?` on SQLite and `$1` and so on on PostgreSQL."""
        cursor.execute(self._sql, self._values(given))
        rows = cursor.fetchall() if self._row._fields else ()
        if not self._readers:
            return [self._row._make(row) for row in rows]
        return [self._read(row) for row in rows]

    def run_many(self, cursor: Any, rows: Sequence[Mapping[str, Any]]) -> int:
        many = [self._values(row) for row in rows]
        names = [name for name, _ in self._parameters]
        named = many if self._is_positional else [dict(zip(names, values, strict=True)) for values in many]
        cursor.executemany(self._named_sql, named)
        return int(cursor.rowcount)

    def _values(self, given: Mapping[str, Any]) -> list[Any]:
        values = [given.get(name, constant) for name, constant in self._parameters]
        for at, to_driver in self._binders:
            values[at] = to_driver(values[at])
        return values

    def _read(self, row: Sequence[Any]) -> Any:
        values = list(row)
        for at, read in self._readers:
            values[at] = read(values[at])
        return self._row._make(values)


def compiled(prepared: Prepared, dialect: Any, given: Mapping[str, Any], *, lock: bool = False) -> CompiledStatement:
    """`lock`: with the rows that it finds locked."""
    key = (dialect.name, lock, *given)
    found: CompiledStatement | None = prepared.compiled.get(key)
    if found is None:
        statement = prepared.locking if lock else prepared.statement
        found = prepared.compiled[key] = CompiledStatement(statement, dialect, tuple(given))
    return found
