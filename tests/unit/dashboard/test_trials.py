"""A trial of a rule ends in time, whatever the archive is full of."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

from postroom.archive.backend import MailReader
from postroom.domain.clock import ManualClock
from postroom.triage.rules.trial import TrialSubject, replay_newest


class NothingButSpam:
    drawn = 0

    def accounts(self) -> list[str]:
        return []

    def newest_first(self, emails: Any = None) -> Iterator[Any]:
        while self.drawn < 100:
            self.drawn += 1
            yield SimpleNamespace(labels=("SPAM",))


def test_mail_that_is_passed_over_counts_against_the_time() -> None:
    archive = NothingButSpam()
    now = ManualClock().now()
    _, is_cut_short = replay_newest(TrialSubject([]), cast(MailReader, archive), now, 10, keep=1, longest_s=0)
    assert (archive.drawn, is_cut_short) == (1, True)
