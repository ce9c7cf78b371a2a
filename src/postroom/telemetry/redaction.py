"""Keeps secrets out of everything that is logged.

Three nets, each enough alone for its case: fields with a telling name, texts that look like credentials, and the
exact values this process was configured with.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

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
