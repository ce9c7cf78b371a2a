"""Structured logs: one event a line on standard error, redacted last, whichever library logged it.

An event is a short constant text in dotted words (`job.failed`) with fields beside it; `job`, `account` and `trace`
are bound to the context where they are known. Mail content is never passed to a logger. Secrets are masked by telling
field names, by texts that look like credentials, and by the exact values that this process was configured with.

Our events go to the handler as they are: what a library for structured logs does around that takes longer than the
work that they tell of.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterable, Mapping
from contextvars import ContextVar, Token
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TextIO

MASK = "[redacted]"

_TELLING_NAME = re.compile(
    r"(?:^|[_.-])(?:token|secret|password|passphrase|passwd|authorization|cookie|api_?key|credentials?|private_?key)s?$",
    re.IGNORECASE,
)
_CREDENTIAL = re.compile(
    r"""
    (?P<keep>
        \b(?:Bearer|Basic)\s+                                             # Authorization headers
      | \b\w+://[^\s/:@]*:(?=[^\s/@]*@)                                   # the password within a URL
      | \b(?:access_token|refresh_token|client_secret|password|code)["']?\s*[=:]\s*["']?
    )
    [^\s"'&,;@}]+
    | \bya29\.[\w.-]+                                                     # Google access tokens
    | \b1//[\w-]{20,}                                                     # Google refresh tokens
    | \bprt_[\w-]{16,}                                                    # our own tokens
    | \b(?:sk|pk)-[\w-]{16,}                                              # model providers' keys
    | \beyJ[\w-]{8,}\.[\w-]+\.[\w-]+                                      # JSON web tokens
    """,
    re.IGNORECASE | re.VERBOSE,
)
_NEEDED_IN_CREDENTIALS = re.compile("[\\s:=./_kK\u212a]")
"""Every credential has one of these (the last is the sign for kelvin, a capital k to the pattern above); ids and most
words have none."""
_SHORTEST_SECRET = 6


@lru_cache(maxsize=1_024)
def _is_telling(name: str) -> bool:
    return _TELLING_NAME.search(name) is not None


class Redactor:
    """Masks secrets in texts and in nested values."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._values: tuple[str, ...] = ()
        self.learn(secrets)

    def learn(self, secrets: Iterable[str]) -> None:
        """Mask these exact values from now on; very short ones would blank out ordinary words."""
        known = {*self._values, *(secret for secret in secrets if len(secret) >= _SHORTEST_SECRET)}
        self._values = tuple(sorted(known, key=len, reverse=True))

    def text(self, text: str) -> str:
        for value in self._values:
            text = text.replace(value, MASK)
        if _NEEDED_IN_CREDENTIALS.search(text) is None:
            return text
        return _CREDENTIAL.sub(lambda match: (match["keep"] or "") + MASK, text)

    def value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {key: self.field(str(key), item) for key, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self.value(item) for item in value]
        if value is None or isinstance(value, bool | int | float):
            return value
        return self.text(str(value))

    def field(self, name: str, value: Any) -> Any:
        return MASK if value is not None and _is_telling(name) else self.value(value)


_redactor = Redactor()
_context: ContextVar[Mapping[str, Any]] = ContextVar("log_context", default={})  # noqa: B039 (never changed in place)


def configure(
    *, level: str = "info", format: str = "json", secrets: Iterable[str] = (), stream: TextIO | None = None
) -> None:
    """Route our own events and those of every library through one redacting formatter."""
    _redactor.learn(secrets)
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Lines(format))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)  # libraries speak up only when something is wrong
    logging.getLogger("postroom").setLevel(level.upper())


_OF_EVERY_RECORD = frozenset({*logging.makeLogRecord({}).__dict__, "message", "asctime"})


class _Lines(logging.Formatter):
    """Renders records, ours and those of libraries, as lines of JSON or for a terminal."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        event = record.msg if isinstance(record, _EventRecord) else _foreign(record)
        fields = {name: _redactor.field(name, value) for name, value in event.items()}
        fields["level"], fields["logger"] = record.levelname.lower(), record.name
        moment = datetime.fromtimestamp(record.created, UTC)
        fields["timestamp"] = moment.isoformat(timespec="microseconds")[:-6] + "Z"
        if record.exc_info:
            fields["exception"] = _redactor.text(self.formatException(record.exc_info))
        return json.dumps(fields) if self._form == "json" else _for_terminal(fields)


def _foreign(record: logging.LogRecord) -> dict[str, Any]:
    more = {name: value for name, value in record.__dict__.items() if name not in _OF_EVERY_RECORD}
    return {"event": record.getMessage(), **more}


def _for_terminal(fields: dict[str, Any]) -> str:
    """structlog takes as long to import as all else that a short command needs."""
    import structlog

    return str(structlog.dev.ConsoleRenderer(colors=False)(None, "", fields))


class _EventRecord(logging.LogRecord):
    """One of our events, whose message is its fields."""

    msg: Any

    def getMessage(self) -> str:
        return str(self.msg)


class Logger:
    """Writes events under one name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._logger = logging.getLogger(name)

    def debug(self, event: str, **fields: Any) -> None:
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._write(logging.ERROR, event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """An error with the traceback of the exception that is being handled."""
        self._write(logging.ERROR, event, fields, sys.exc_info())

    def _write(self, level: int, event: str, fields: dict[str, Any], error: Any = None) -> None:
        if not self._logger.isEnabledFor(level):
            return
        given = fields.pop("exc_info", None)  # never a field: its traceback is made, and cleaned, by the formatter
        if isinstance(given, BaseException):
            error = (type(given), given, given.__traceback__)
        whole = {**_context.get(), **fields, "event": event}
        self._logger.handle(_EventRecord(self._name, level, "", 0, whole, (), error))


def bind(**fields: Any) -> Token[Mapping[str, Any]]:
    """Add these fields to every event of this task from now on, or until `unbind`."""
    return _context.set({**_context.get(), **fields})


def unbind(bound: Token[Mapping[str, Any]]) -> None:
    """Take back what `bind` added in this task, and what was bound after it."""
    _context.reset(bound)


def get(name: str) -> Logger:
    return Logger(name)


def learn_secrets(secrets: Iterable[str]) -> None:
    """Also keep these values out of the logs, for example a token that was just refreshed."""
    _redactor.learn(secrets)


def clean(text: str) -> str:
    """The same text without secrets, for what is stored or shown rather than logged (a job's last error)."""
    return _redactor.text(text)
