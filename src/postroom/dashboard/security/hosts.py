"""By which names the dashboard may be called: a web page must not reach it through a name that resolves to here."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from postroom.settings import Settings
from postroom.switchboard.serving import is_loopback

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})


@dataclass(frozen=True, slots=True)
class Hosts:
    names: frozenset[str]
    """With any port: it may be forwarded."""
    public: str | None = None
    """Host, with its port, of the address that people use."""
    is_secure: bool = False

    @classmethod
    def of(cls, settings: Settings) -> Hosts:
        listening = settings.switchboard.host
        own = f"[{listening}]" if ":" in listening else listening
        names = _LOOPBACK if is_loopback(listening) else frozenset({own})
        if settings.dashboard.url is None:
            return cls(names)
        public = urlsplit(settings.dashboard.url)
        return cls(names, public.netloc.lower(), public.scheme == "https")

    def knows(self, host: str) -> bool:
        return host.lower() == self.public or _name(host) in self.names


def _name(host: str) -> str:
    """Without its port."""
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdecimal() else host.lower()


def port_of(host: str) -> int | None:
    _, colon, port = host.rpartition(":")
    return int(port) if colon and port.isdecimal() and len(port) <= 5 else None
