"""The interface of fetching: one call, its answer, the limits, and the errors.

    Retryable
    ├── Unavailable      5xx, timeout, no connection, answer cut off; Retry-After where the server said so
    │   ├── Throttled    429
    │   └── Unreachable  no connection, so the request was certainly not received
    │       └── UnknownHost  no such name in the DNS, so waiting is of little use
    └── NotYet           it is not this domain's turn within the caller's patience
    Fatal
    ├── Refused          4xx and other statuses that are not a page
    ├── BadAnswer        unknown compression, or redirects in circles or to nowhere
    └── TooLarge         more bytes than allowed, compressed or not
    NotAllowed
    ├── ForbiddenAddress the address is not public, or the URL is written to hide what it is
    ├── Astray           it redirects to a site outside its source
    └── Disallowed       robots.txt says no
    NotFound
    └── Missing          404 and 410

No message holds more of a URL than its host and path: queries may carry secrets.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

from postroom.domain.errors import Fatal, NotAllowed, NotFound, Retryable
from postroom.mail.charsets import decode_text


class Unavailable(Retryable):
    """The web site could not answer now."""


class Throttled(Unavailable):
    """The web site asks for fewer requests."""


class Unreachable(Unavailable):
    """The web site cannot be reached; it did not get the request."""


class UnknownHost(Unreachable):
    """No web site has this name. Check its spelling."""


class NotYet(Retryable):
    """It is not this domain's turn yet."""


class Refused(Fatal):
    """The web site refused the request."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class BadAnswer(Fatal):
    """The web site's answer makes no sense."""


class TooLarge(Fatal):
    """The web site's answer is larger than allowed."""


class ForbiddenAddress(NotAllowed):
    """The address is not a public one. Allow it by name if it is meant to be fetched."""


class Astray(NotAllowed):
    """The page redirects to another site than that of its source."""


class Disallowed(NotAllowed):
    """The site's robots.txt does not allow this to be fetched."""


class Missing(NotFound):
    """There is no such page."""


_DECLARATION = 4_096


class Purpose(StrEnum):
    """What a request is for; it is logged and counted, and robots.txt itself needs no permission by robots.txt."""

    DISCOVERY = "discovery"
    EVIDENCE = "evidence"
    ROBOTS = "robots"


@dataclass(frozen=True, slots=True)
class Validators:
    """ETag and Last-Modified as the server sent them, for conditional requests."""

    etag: str | None = None
    last_modified: str | None = None

    def headers(self) -> dict[str, str]:
        given = {"If-None-Match": self.etag, "If-Modified-Since": self.last_modified}
        return {name: value for name, value in given.items() if value}


@dataclass(frozen=True, slots=True)
class Fetched:
    """A page as it was served (2xx), or that it has not changed (304)."""

    url: str
    """As requested."""
    final_url: str
    """Where the redirects ended."""
    status: int
    body: bytes
    """Without its transfer's compression; empty on 304. A `.gz` file is still a `.gz` file."""
    content_type: str
    """The media type in lower case, without parameters; empty where the server names none."""
    charset: str | None
    validators: Validators
    fetched_at: datetime

    @property
    def not_modified(self) -> bool:
        return self.status == 304

    @property
    def text(self) -> str:
        """The body as text, whatever the server claims about its charset. Never raises."""
        from w3lib.encoding import html_body_declared_encoding  # of the web extra

        declared = self.charset or html_body_declared_encoding(self.body[:_DECLARATION])
        return decode_text(self.body, declared)[0]


@dataclass(frozen=True, slots=True)
class DomainLimits:
    """How often one domain may be fetched from. Hosts with the same `domain` take turns together."""

    domain: str
    min_delay_s: float
    max_delay_s: float
    max_concurrent: int = 1


LimitsOf = Callable[[str], DomainLimits]
"""The limits in force for a host name."""


MayLead = Callable[[str, str], bool]
"""Whether a page of the first host may redirect to the second."""


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Bounds of one exchange with a server."""

    largest_body: int = 20 * 1024 * 1024
    """In bytes, compressed and not."""
    total_s: float = 60.0
    """From the name's lookup to the last byte."""
    connect_s: float = 10.0
    read_s: float = 20.0
    """The longest wait for the next bytes."""
    most_redirects: int = 5


class DomainPace(Protocol):
    """Takes turns at domains with all other processes."""

    def turn(
        self, limits: DomainLimits, *, crawl_delay_s: float = 0.0, patience: timedelta | None = None
    ) -> AbstractAsyncContextManager[None]:
        """Wait for a turn and hold it while the block runs. Raises `NotYet` if the wait would exceed `patience`."""

    async def hold(self, domain: str, wait: timedelta) -> None:
        """Send no request to this domain for this long, as its server asked."""


class Fetching(Protocol):
    """Fetches pages; every request of `web` goes through it."""

    async def get(
        self,
        url: str,
        *,
        purpose: Purpose,
        conditional: Validators | None = None,
        patience: timedelta | None = None,
    ) -> Fetched:
        """The page behind the url, through redirects. Raises the errors above, each either Retryable or final.

        `patience` bounds the wait for the domain's turn (`NotYet` beyond it); None waits as long as it takes.
        """
