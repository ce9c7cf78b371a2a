"""notmuch in this process, through its C library: its searches are then measured without the start of a program."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from ctypes.util import find_library
from pathlib import Path
from typing import NamedTuple

_NEWEST_FIRST = 1
_READ_ONLY, _READ_WRITE = 0, 1
_POINTERS = ("query_create", "messages_get", "message_get_tags")
_TEXTS = ("message_get_message_id", "message_get_header", "tags_get")
_TIMES = ("message_get_date",)


class Row(NamedTuple):
    """What a list of mail shows; notmuch has all of it in its index."""

    message_id: str
    date: int
    sender: str
    subject: str
    tags: tuple[str, ...]


def is_installed() -> bool:
    return find_library("notmuch") is not None


class NotmuchFailed(Exception):
    """A call of the library was answered with an error code."""


class Library:
    """The few functions that are needed, by their names without `notmuch_`. Pointers are opaque."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(find_library("notmuch") or "libnotmuch.so.5")
        for names, kind in ((_POINTERS, ctypes.c_void_p), (_TEXTS, ctypes.c_char_p), (_TIMES, ctypes.c_long)):
            for name in names:
                self._function(name).restype = kind

    def __call__(self, name: str, *arguments: object) -> object:
        return self._function(name)(*(a.encode() if isinstance(a, str) else a for a in arguments))

    def pointer(self, name: str, *arguments: object) -> ctypes.c_void_p:
        return ctypes.c_void_p(int(str(self(name, *arguments))))

    def text(self, name: str, *arguments: object) -> str:
        value = self(name, *arguments)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""

    def made(self, name: str, *arguments: object) -> ctypes.c_void_p:
        """A function that answers with a code and puts what it made into its last argument."""
        out = ctypes.c_void_p()
        code = self(name, *arguments, ctypes.byref(out))
        if code:
            raise NotmuchFailed(f"notmuch_{name} failed with code {code}")
        return out

    def _function(self, name: str) -> ctypes._NamedFuncPointer:
        return getattr(self._library, f"notmuch_{name}")  # type: ignore[no-any-return]


class Notmuch:
    def __init__(self, config: Path, *, writable: bool = False) -> None:
        self._call = Library()
        self._database = ctypes.c_void_p()
        mode = _READ_WRITE if writable else _READ_ONLY
        out = ctypes.byref(self._database)
        code = self._call("database_open_with_config", None, mode, str(config), None, out, None)
        if code:
            raise NotmuchFailed(f"the index of {config} cannot be opened (code {code})")

    def close(self) -> None:
        self._call("database_destroy", self._database)

    def search(self, query: str, limit: int, excluded: Iterable[str]) -> list[Row]:
        """The first page newest first, as `notmuch search` finds it."""
        with self._query(query, excluded) as asked:
            messages = self._call.made("query_search_messages", asked)
            rows: list[Row] = []
            while len(rows) < limit and self._call("messages_valid", messages):
                rows.append(self._row(self._call.pointer("messages_get", messages)))
                self._call("messages_move_to_next", messages)
            return rows

    def tag(self, tags_by_file: Iterable[tuple[str, Iterable[str]]]) -> None:
        self._call("database_begin_atomic", self._database)
        for name, tags in tags_by_file:
            message = self._call.made("database_find_message_by_filename", self._database, name)
            if not message:
                raise NotmuchFailed(f"{name} is not in the index")
            self._call("message_freeze", message)
            for tag in tags:
                self._call("message_add_tag", message, tag)
            self._call("message_thaw", message)
            self._call("message_destroy", message)
        self._call("database_end_atomic", self._database)

    @contextmanager
    def _query(self, query: str, excluded: Iterable[str]) -> Iterator[ctypes.c_void_p]:
        asked = self._call.pointer("query_create", self._database, query)
        self._call("query_set_sort", asked, _NEWEST_FIRST)
        for tag in excluded:
            self._call("query_add_tag_exclude", asked, tag)
        try:
            yield asked
        finally:
            self._call("query_destroy", asked)

    def _row(self, message: ctypes.c_void_p) -> Row:
        return Row(
            self._call.text("message_get_message_id", message),
            int(str(self._call("message_get_date", message))),
            self._call.text("message_get_header", message, "from"),
            self._call.text("message_get_header", message, "subject"),
            tuple(self._tags(message)),
        )

    def _tags(self, message: ctypes.c_void_p) -> Iterator[str]:
        tags = self._call.pointer("message_get_tags", message)
        while self._call("tags_valid", tags):
            yield self._call.text("tags_get", tags)
            self._call("tags_move_to_next", tags)
