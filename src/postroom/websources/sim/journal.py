"""Every request that the stand-in saw, with its times: by this alone politeness can be measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from postroom.domain.clock import Clock


@dataclass(slots=True)
class Visit:
    number: int
    path: str
    agent: str
    began: float
    """Seconds on the stand-in's own clock."""
    in_flight: int
    """Requests under way when this one came, itself included."""
    status: int | None = None
    ended: float | None = None


class Journal:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.visits: list[Visit] = []
        self._in_flight = 0

    def begin(self, path: str, agent: str) -> Visit:
        self._in_flight += 1
        visit = Visit(len(self.visits) + 1, path, agent, self._clock.monotonic(), self._in_flight)
        self.visits.append(visit)
        return visit

    def end(self, visit: Visit, status: int | None) -> None:
        self._in_flight -= 1
        visit.ended, visit.status = self._clock.monotonic(), status

    @property
    def most_in_flight(self) -> int:
        return max((visit.in_flight for visit in self.visits), default=0)

    def gaps(self) -> list[float]:
        """Seconds from the beginning of each request to that of the next."""
        return [later.began - earlier.began for earlier, later in zip(self.visits, self.visits[1:], strict=False)]

    def as_json(self) -> list[dict[str, object]]:
        return [asdict(visit) for visit in self.visits]
