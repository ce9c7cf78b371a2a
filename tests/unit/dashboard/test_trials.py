"""A trial of a rule ends in time, whatever the archive is full of."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from postroom.archive.backend import MailReader
from postroom.dashboard.rules import queries
from postroom.domain.clock import ManualClock
from postroom.triage.rules.trial import TrialSubject


class NothingButSpam:
    drawn = 0

    def accounts(self) -> list[str]:
        return []

    def newest_first(self, emails: Any = None) -> Iterator[Any]:
        while self.drawn < 100:
            self.drawn += 1
            yield SimpleNamespace(labels=("SPAM",))


def test_mail_that_is_passed_over_counts_against_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "_LONGEST_S", 0)
    archive = NothingButSpam()
    _, is_cut_short = queries._replayed(cast(MailReader, archive), TrialSubject([]), ManualClock().now(), 10)
    assert (archive.drawn, is_cut_short) == (1, True)
