"""Messages that cannot be read or taken in now. They hold up nobody and are not forgotten: each is tried again, ever
more seldom, until it is in or gone. Kept in a small file, so that a restart knows them too."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from postroom.connectors.files import read_json, write_json
from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput, PostroomError
from postroom.telemetry import logs

FILE = "parked.json"
_TRIES = 3
_PATIENT_TRIES = 20
"""For an error that may well be an outage: of the network, say, and not of this message."""
_FIRST_WAIT = timedelta(minutes=10)
_LONGEST_WAIT = timedelta(days=1)
_LONGEST_REASON = 300
log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class Parked:
    tries: int
    first_seen: str
    due: str | None
    """None while it still holds up the pass that met it."""
    reason: str


class Parking:
    def __init__(self, folder: Path, clock: Clock) -> None:
        self._path = folder / FILE
        self._clock = clock
        self._entries = {key: entry for key, value in _held(self._path).items() if (entry := _entry(value))}

    @property
    def count(self) -> int:
        return sum(entry.due is not None for entry in self._entries.values())

    def due(self, most: int = 50) -> list[str]:
        """Those whose time has come to be tried again."""
        now = self._clock.now().isoformat()
        return [key for key, entry in self._entries.items() if entry.due is not None and entry.due <= now][:most]

    def failed(self, key: str, error: PostroomError, *, alone: bool) -> bool:
        """Note a failure; True once the message is parked, and the pass may go on without it.

        `alone` says that others in the same batch went well, so that it is the message and not the world.
        """
        before = self._entries.get(key)
        tries = (before.tries if before else 0) + 1
        needed = _TRIES if alone or isinstance(error, BadInput) else _PATIENT_TRIES
        parked = tries >= needed or (before is not None and before.due is not None)
        first_seen = before.first_seen if before else self._clock.now().isoformat()
        reason = logs.clean(error.message)[:_LONGEST_REASON]
        self._entries[key] = Parked(tries, first_seen, self._due(tries, needed) if parked else None, reason)
        self._write()
        if parked:
            log.warning("message.parked", message=key, tries=tries, reason=reason)
        return parked

    def done(self, keys: list[str]) -> list[str]:
        """These are in, or gone; answers those that had been parked."""
        if known := [key for key in keys if key in self._entries]:
            parked = [key for key in known if self._entries[key].due is not None]
            for key in known:
                del self._entries[key]
            self._write()
            return parked
        return []

    def _due(self, tries: int, needed: int) -> str:
        wait: timedelta = min(_FIRST_WAIT * 2 ** min(max(0, tries - needed), 10), _LONGEST_WAIT)
        due: datetime = self._clock.now() + wait
        return due.isoformat()

    def _write(self) -> None:
        write_json(self._path, {key: asdict(entry) for key, entry in self._entries.items()})


def _held(path: Path) -> dict[str, Any]:
    held = read_json(path)
    return held if isinstance(held, dict) else {}


def _entry(value: object) -> Parked | None:
    try:
        return Parked(**value) if isinstance(value, dict) else None
    except TypeError:
        return None
