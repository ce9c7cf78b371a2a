"""The stand-in as a process of its own, without quota, with mail of a realistic size; prints one line when ready."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator

import uvloop

from postroom.sim.gmail.server import GmailSim, run_until_stopped
from postroom.sim.gmail.sources import ListedMail, ListSource

_START_MS = 1_700_000_000_000
_MEAN_BYTES = 5_500
_WORDS = ("the", "of", "and", "to", "for", "with", "from", "about", "after", "report", "invoice", "meeting", "project")


def mails(count: int, seed: int) -> Iterator[ListedMail]:
    """Letters of plain text, 5.5 KB on average: from a few lines to ten times the mean."""
    dice = random.Random(seed)
    for number in range(count):
        size = min(int(dice.expovariate(1 / _MEAN_BYTES)) + 300, 10 * _MEAN_BYTES)
        words = " ".join(dice.choices(_WORDS, k=size // 5))
        lines = "\r\n".join(words[start : start + 72] for start in range(0, len(words), 72))
        raw = (
            f"From: Ann <ann{number % 50}@friends.example>\r\nTo: owner@example.com\r\nSubject: Letter {number}\r\n"
            f"Message-ID: <{number}@bench.example>\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n{lines}\r\n"
        )
        yield ListedMail(raw.encode(), _START_MS + number * 60_000)


def announce(sim: GmailSim) -> None:
    print(json.dumps({"url": sim.url, "token": sim.token, "control_token": sim.control_token}), flush=True)


if __name__ == "__main__":
    source = ListSource(mails(int(sys.argv[1]), seed=7), email="owner@example.com")
    uvloop.run(run_until_stopped(source, quota="none", port=0, announce=announce))
