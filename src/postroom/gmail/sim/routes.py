"""The table of methods: paths, grants, prices and handlers, and the way from a request to its method."""

from __future__ import annotations

from collections import defaultdict
from urllib.parse import unquote

from postroom.gmail.quota import Method
from postroom.gmail.sim import scopes
from postroom.gmail.sim.call import Handler, Route
from postroom.gmail.sim.methods import account, drafts, labels, messages, threads


def _route(
    verb: str, template: str, allowed: frozenset[str], method: Method, handler: Handler, name: str = ""
) -> Route:
    return Route(name or str(method), verb, template, allowed, method, handler)


def _thread_route(verb: str, template: str, allowed: frozenset[str], name: str, handler: Handler) -> Route:
    """The price list has no line for changes to threads; they are charged like reading one."""
    return _route(verb, template, allowed, Method.THREADS_GET, handler, name)


ROUTES = (
    _route("GET", "profile", scopes.TO_SEE_PROFILE, Method.GET_PROFILE, account.get_profile),
    _route("POST", "watch", scopes.TO_READ, Method.WATCH, account.watch),
    _route("POST", "stop", scopes.TO_READ, Method.STOP, account.stop),
    _route("GET", "history", scopes.TO_READ, Method.HISTORY_LIST, account.list_history),
    _route("GET", "messages", scopes.TO_READ, Method.MESSAGES_LIST, messages.list_),
    _route("POST", "messages", scopes.TO_INSERT, Method.MESSAGES_INSERT, messages.insert),
    _route("POST", "messages/import", scopes.TO_INSERT, Method.MESSAGES_IMPORT, messages.import_),
    _route("POST", "messages/send", scopes.TO_SEND, Method.MESSAGES_SEND, messages.send),
    _route("POST", "messages/batchModify", scopes.TO_CHANGE, Method.MESSAGES_BATCH_MODIFY, messages.batch_modify),
    _route("POST", "messages/batchDelete", scopes.TO_ERASE, Method.MESSAGES_BATCH_DELETE, messages.batch_delete),
    _route("GET", "messages/*", scopes.TO_READ, Method.MESSAGES_GET, messages.get),
    _route("DELETE", "messages/*", scopes.TO_ERASE, Method.MESSAGES_DELETE, messages.delete),
    _route("POST", "messages/*/modify", scopes.TO_CHANGE, Method.MESSAGES_MODIFY, messages.modify),
    _route("POST", "messages/*/trash", scopes.TO_CHANGE, Method.MESSAGES_TRASH, messages.trash),
    _route("POST", "messages/*/untrash", scopes.TO_CHANGE, Method.MESSAGES_UNTRASH, messages.untrash),
    _route("GET", "messages/*/attachments/*", scopes.TO_READ_BODIES, Method.ATTACHMENTS_GET, messages.get_attachment),
    _route("GET", "threads", scopes.TO_READ, Method.THREADS_LIST, threads.list_),
    _route("GET", "threads/*", scopes.TO_READ, Method.THREADS_GET, threads.get),
    _thread_route("POST", "threads/*/modify", scopes.TO_CHANGE, "threads.modify", threads.modify),
    _thread_route("POST", "threads/*/trash", scopes.TO_CHANGE, "threads.trash", threads.trash),
    _thread_route("POST", "threads/*/untrash", scopes.TO_CHANGE, "threads.untrash", threads.untrash),
    _thread_route("DELETE", "threads/*", scopes.TO_ERASE, "threads.delete", threads.delete),
    _route("GET", "labels", scopes.TO_SEE_LABELS, Method.LABELS_LIST, labels.list_),
    _route("POST", "labels", scopes.TO_CHANGE_LABELS, Method.LABELS_CREATE, labels.create),
    _route("GET", "labels/*", scopes.TO_SEE_LABELS, Method.LABELS_GET, labels.get),
    _route("PUT", "labels/*", scopes.TO_CHANGE_LABELS, Method.LABELS_UPDATE, labels.update),
    _route("PATCH", "labels/*", scopes.TO_CHANGE_LABELS, Method.LABELS_PATCH, labels.patch),
    _route("DELETE", "labels/*", scopes.TO_CHANGE_LABELS, Method.LABELS_DELETE, labels.delete),
    _route("GET", "drafts", scopes.TO_SEE_DRAFTS, Method.DRAFTS_LIST, drafts.list_),
    _route("POST", "drafts", scopes.TO_COMPOSE, Method.DRAFTS_CREATE, drafts.create),
    _route("POST", "drafts/send", scopes.TO_COMPOSE, Method.DRAFTS_SEND, drafts.send),
    _route("GET", "drafts/*", scopes.TO_SEE_DRAFTS, Method.DRAFTS_GET, drafts.get),
    _route("PUT", "drafts/*", scopes.TO_COMPOSE, Method.DRAFTS_UPDATE, drafts.update),
    _route("DELETE", "drafts/*", scopes.TO_COMPOSE, Method.DRAFTS_DELETE, drafts.delete),
)


def _table() -> dict[tuple[str, int], list[tuple[tuple[str, ...], Route]]]:
    table: defaultdict[tuple[str, int], list[tuple[tuple[str, ...], Route]]] = defaultdict(list)
    for route in ROUTES:
        parts = tuple(route.template.split("/"))
        table[route.verb, len(parts)].append((parts, route))
    for candidates in table.values():
        candidates.sort(key=lambda candidate: "*" in candidate[0])
    return dict(table)


_TABLE = _table()


def find_route(verb: str, path: str) -> tuple[Route, tuple[str, ...]] | None:
    """The method for a path below `users/{userId}/`, and the ids in it."""
    parts = path.split("/")
    for template, route in _TABLE.get((verb, len(parts)), ()):
        if all(expected in ("*", given) for expected, given in zip(template, parts, strict=True)):
            return route, tuple(unquote(part) for part, kind in zip(parts, template, strict=True) if kind == "*")
    return None
