"""Bad weather: the service, the network or the disk, and no message, is to blame. Everybody waits it out together."""

from __future__ import annotations

from postroom.domain.clock import Clock
from postroom.domain.errors import Retryable
from postroom.telemetry import logs

_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 60.0
_log = logs.get(__name__)


class Weather:
    """Shared by all who call the service. A pause that the service asked for is obeyed and costs no patience."""

    def __init__(self, clock: Clock, patience_s: float) -> None:
        self._clock = clock
        self._patience_s = patience_s
        self._bad_since: float | None = None
        self._hold_until = clock.monotonic()
        self._storms = 0

    @property
    def is_bad(self) -> bool:
        return self._bad_since is not None

    async def wait(self) -> None:
        """Until it is worth trying again."""
        while (left := self._hold_until - self._clock.monotonic()) > 0:
            await self._clock.sleep(left)

    def storm(self, error: Retryable) -> None:
        """It did not go through. Raises the error itself once patience has run out."""
        now = self._clock.monotonic()
        if now < self._hold_until:
            return  # one of many that were under way when it began
        asked_for = error.retry_after.total_seconds() if error.retry_after else 0.0
        if self._bad_since is None:
            self._bad_since = now
        elif now - self._bad_since >= self._patience_s:
            raise error
        self._bad_since += asked_for
        wait = max(asked_for, min(_FIRST_WAIT_S * 2**self._storms, _LONGEST_WAIT_S))
        self._storms += 1
        self._hold_until = now + wait
        _log.warning("sync.waiting", seconds=round(wait, 1), problem=error.message)

    def fair(self) -> None:
        """It went through."""
        self._bad_since = None
        self._storms = 0
