"""How a connection to PostgreSQL waits: it asks the event loop only where its socket is not ready."""

from __future__ import annotations

import socket
from collections.abc import Generator, Iterator
from contextlib import suppress

import pytest
from psycopg.waiting import READY_R, READY_W, WAIT_R, WAIT_RW, WAIT_W, Wait

from postroom.db import postgres

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


class _Steps:
    """Stands in for the driver: wants these things one after the other, and records what it was told."""

    def __init__(self, *wanted: Wait) -> None:
        self.told: list[int] = []
        self._wanted = wanted

    def __iter__(self) -> Generator[Wait, int, str]:
        for wanted in self._wanted:
            self.told.append((yield wanted))
        return "answer"


def _waits(steps: _Steps, ours: socket.socket, *answers: int) -> list[int]:
    """What comes out, that is what the event loop is asked for; each is given the next of the answers."""
    going_on = postgres._without_needless_waits(iter(steps), ours.fileno())
    asked: list[int] = []
    with pytest.raises(StopIteration) as done:  # noqa: PT012 (which of these is the last is what it is about)
        asked.append(next(going_on))
        for answer in answers:
            asked.append(going_on.send(answer))
    assert done.value.value == "answer"
    return asked


def test_a_socket_that_is_ready_is_not_waited_for(ends: Ends) -> None:
    ours, theirs = ends
    steps = _Steps(WAIT_W, WAIT_RW, WAIT_RW)
    assert _waits(steps, ours) == []
    assert steps.told == [READY_W] * 3
    theirs.send(b"an answer")
    steps = _Steps(WAIT_R, WAIT_RW, WAIT_W)
    assert _waits(steps, ours) == []
    assert steps.told == [READY_R, READY_R | READY_W, READY_W]


def test_what_has_not_arrived_is_waited_for(ends: Ends) -> None:
    ours, _ = ends
    steps = _Steps(WAIT_W, WAIT_R, WAIT_W)
    assert _waits(steps, ours, READY_R) == [WAIT_R]
    assert steps.told == [READY_W, READY_R, READY_W]


def test_a_socket_that_takes_no_more_is_waited_for(ends: Ends) -> None:
    ours, _ = ends
    with suppress(BlockingIOError):
        while ours.send(bytes(100_000)):
            pass
    assert _waits(_Steps(WAIT_RW), ours, READY_W) == [WAIT_RW]


def test_a_lost_connection_is_found_at_once(ends: Ends) -> None:
    ours, theirs = ends
    theirs.close()
    steps = _Steps(WAIT_R)
    assert _waits(steps, ours) == []
    assert steps.told == [READY_R]


def test_the_event_loop_turns_now_and_then_however_much_the_server_sends(ends: Ends) -> None:
    ours, _ = ends
    many = 2 * postgres._STEPS_IN_A_ROW
    steps = _Steps(*[WAIT_W] * many)
    assert _waits(steps, ours, READY_W, READY_W) == [WAIT_W, WAIT_W]
    assert len(steps.told) == many
