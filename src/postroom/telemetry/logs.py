"""Structured logs: one event a line on standard error, redacted last, whichever library logged it.

An event is a short constant text in dotted words (`job.failed`) with fields beside it; `job`, `account` and `trace`
are bound to the context where they are known. Mail content is never passed to a logger. Secrets are masked by telling
field names, by texts that look like credentials, and by the exact values that this process was configured with.

structlog takes as long to import as all else that a short command needs, so it is imported with the first event that
is written.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable, Mapping
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger

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
_SHORTEST_SECRET = 6


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
        return MASK if value is not None and _TELLING_NAME.search(name) else self.value(value)


_redactor = Redactor()
_context: ContextVar[Mapping[str, Any]] = ContextVar("log_context", default={})  # noqa: B039 (never changed in place)


_is_configured = False
_is_ready = False


def configure(
    *, level: str = "info", format: str = "json", secrets: Iterable[str] = (), stream: TextIO | None = None
) -> None:
    """Route our own events and those of every library through one redacting formatter."""
    global _is_configured, _is_ready
    _redactor.learn(secrets)
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Lines(format))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)  # libraries speak up only when something is wrong
    logging.getLogger("postroom").setLevel(level.upper())
    _is_configured, _is_ready = True, False
    if "structlog" in sys.modules:
        _prepare()


def _prepare() -> None:
    """Tell structlog how to log. Where nothing was configured, as in a child process, it prints to standard error:
    standard output belongs to the answer."""
    global _is_ready
    _is_ready = True
    import structlog

    if _is_configured:
        structlog.configure(
            processors=[
                structlog.stdlib.filter_by_level,
                *_shared(),
                structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
            ],
            logger_factory=structlog.stdlib.LoggerFactory(),
            wrapper_class=structlog.stdlib.BoundLogger,
            cache_logger_on_first_use=False,
        )
    elif not structlog.is_configured():
        structlog.configure(logger_factory=lambda *names: structlog.PrintLogger(sys.stderr))


def _shared() -> list[Processor]:
    import structlog

    return [
        _merge_context,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]


class _Lines(logging.Formatter):
    """Renders records, ours and those of libraries, as lines of JSON or for a terminal."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self._form = form
        self._renderer: logging.Formatter | None = None

    def format(self, record: logging.LogRecord) -> str:
        if self._renderer is None:
            self._renderer = self._build()
        return self._renderer.format(record)

    def _build(self) -> logging.Formatter:
        import structlog

        rendered: Processor = (
            structlog.dev.ConsoleRenderer(colors=False)
            if self._form == "console"
            else structlog.processors.JSONRenderer()
        )
        return structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_shared(),
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, redact, rendered],
        )


class Logger:
    """Writes events under one name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._logger: Any = None

    def debug(self, event: str, **fields: Any) -> None:
        self._write("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._write("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._write("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._write("error", event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """An error with the traceback of the exception that is being handled."""
        self._write("exception", event, fields)

    def _write(self, method: str, event: str, fields: dict[str, Any]) -> None:
        if not _is_ready:
            level = logging.ERROR if method == "exception" else logging.getLevelNamesMapping()[method.upper()]
            if _is_configured and not logging.getLogger(self._name).isEnabledFor(level):
                return
            _prepare()
        if self._logger is None:
            import structlog

            self._logger = structlog.stdlib.get_logger(self._name)
        getattr(self._logger, method)(event, **fields)


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


def _merge_context(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    return {**_context.get(), **event}


def redact(logger: WrappedLogger, method: str, event: EventDict) -> dict[str, Any]:
    return {name: _redactor.field(name, value) for name, value in event.items()}
