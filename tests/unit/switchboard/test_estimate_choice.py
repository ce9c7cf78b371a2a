"""An estimate chooses exactly what the connector will choose: 329 against 328 is one too many."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import product
from pathlib import Path

import pytest

from postroom.connectors.guidance import ContactCache
from postroom.connectors.source_mail import SourceMail
from postroom.connectors.walking import WalkScope, WalkWindow
from postroom.domain.clock import ManualClock
from postroom.mail.addresses import canonical_address
from postroom.mail.categories import facts_of, names_on, shipped
from postroom.mail.headers import Headers
from postroom.switchboard.backfill.counting import FULL, BackfillTally
from postroom.switchboard.backfill.terms import NewBackfill

FIRST, LAST = date(2026, 3, 1), date(2026, 3, 31)
CONTACTS = ["jo.doe@gmail.com", "ann@home.example"]
SENDERS = (
    "Jo <jo.doe@gmail.com>",
    "Jo <JoDoe+x@googlemail.com>",
    "Ann <ann@home.example>, stranger@x.example",
    "stranger@x.example",
    "billing@shop.example",
    "",
)
SUBJECTS = ("Your receipt", "Hello", "Your flight itinerary")
LABELS = ((), ("INBOX",), ("CHAT",), ("SENT",), ("SPAM", "INBOX"), ("DRAFT",))
DAYS = (date(2026, 3, 1), date(2026, 3, 14), date(2026, 3, 15), date(2026, 3, 31))
NAMES, LATER = ("finance", "relationship", "travel"), {"travel": date(2026, 3, 15)}


@pytest.mark.req("BF-19", "BF-16")
@pytest.mark.parametrize("includes", [(), ("sent", "spam")])
def test_the_estimate_counts_what_the_connector_takes(tmp_path: Path, includes: tuple[str, ...]) -> None:
    clock = ManualClock()
    known = ContactCache(tmp_path, clock, timedelta(days=1))
    known.replace(clock.now(), CONTACTS)
    wanted = NewBackfill("gmail", "me@example.com", FIRST, LAST, NAMES, LATER, includes=includes)
    compared = frozenset(canonical_address(each, fold_gmail=True) for each in CONTACTS)
    scope = WalkScope(WalkWindow.of(FIRST, LAST), includes=frozenset(includes))
    chosen = 0
    for sender, subject, labels, day in product(SENDERS, SUBJECTS, LABELS, DAYS):
        headers = Headers((("From", sender), ("Subject", subject)))
        received = datetime(day.year, day.month, day.day, tzinfo=UTC)
        mail = SourceMail("a", "t", frozenset(labels), int(received.timestamp() * 1_000), headers)
        names = names_on(NAMES, LATER, mail.day)
        facts = facts_of(headers, is_known=known.knows_sender(headers), labels=labels)
        takes = scope.admits(mail) and bool(shipped().matching(facts, names))
        tally = BackfillTally(wanted, shipped(), lambda headers, labels: FULL, compared)
        assert tally.add("a", received, headers, labels) is takes, (sender, subject, labels, day)
        chosen += takes
    assert chosen > 20
