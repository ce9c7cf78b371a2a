"""What can go wrong on the way to a page, in Postroom's terms.

    Retryable
    ├── Unavailable      5xx, timeout, no connection, answer cut off; Retry-After where the server said so
    │   └── Throttled    429
    └── NotYet           it is not this domain's turn within the caller's patience
    Fatal
    ├── Refused          4xx and other statuses that are no page
    ├── BadAnswer        compressed by no rule we know, redirected in circles or to nowhere
    └── TooLarge         more bytes than allowed, compressed or not
    NotAllowed
    ├── ForbiddenAddress the address is not public, or the url is written to hide what it is
    ├── Astray           it redirects to a site that nobody asked for
    └── Disallowed       robots.txt says no
    NotFound
    └── Missing          404 and 410

No message holds more of a url than its host and path: queries may carry secrets.
"""

from __future__ import annotations

from postroom.domain.errors import Fatal, NotAllowed, NotFound, Retryable


class Unavailable(Retryable):
    """The web site could not answer now."""


class Throttled(Unavailable):
    """The web site asks for fewer requests."""


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
