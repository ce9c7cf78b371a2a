"""A trial answers from the columns of a list where they suffice, and as the headers would."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from postroom.archive.backend import MailReader
from postroom.archive.messages import ArchivedMessage, IncomingMail, Provenance
from postroom.archive.preparing import prepare_and_read
from postroom.domain.errors import Fatal
from postroom.mail.headers import Headers
from postroom.triage.rules.engine import RuleSet
from postroom.triage.rules.facts import glance_at
from postroom.triage.rules.trial import Trial, facts_in, try_rules
from tests.support.mail import ME
from tests.support.rules import NOW, rule

_NAMES = st.sampled_from(
    ["", "Ann", '"Bank, the" ', "bank@bank.example", '"bank@bank.example, "', "=?utf-8?q?Zo=C3=AB?=", "a <b>", "Ünal"]
)
_ADDRESSES = st.sampled_from(
    ["ann@example.org", "ANN@Example.ORG", '"a b"@example.org', "x@münchen.example", "no-address", "a@b@c.example", ""]
)
_SENDERS = st.builds(lambda name, address: f"{name} <{address}>" if name else address, _NAMES, _ADDRESSES)
_FROM = st.one_of(
    st.lists(_SENDERS, max_size=3).map(", ".join),
    st.text(alphabet='ab@.<>",;:()\\ é', max_size=40),
    st.integers(300, 700).map(lambda size: f"{'n' * size} <ann@example.org>"),
)


class OneMessage:
    """An archive of one message, which can or cannot give its bytes."""

    def __init__(self, raw: bytes, *, is_damaged: bool = False) -> None:
        prepared, self._headers = prepare_and_read(IncomingMail(raw, Provenance.IMPORT))
        self._is_damaged = is_damaged
        self._senders = tuple(address for kind, address, _ in prepared.recipients if kind == "from")
        self.message = ArchivedMessage(
            account=ME,
            key=prepared.key,
            shard=f"{ME}/2026",
            row_id=1,
            date=NOW,
            gmail_id=None,
            thread_id=prepared.thread_id,
            message_id=prepared.message_id,
            sender=prepared.sender,
            subject=prepared.subject,
            size=len(raw),
            sha256=prepared.sha256.hex(),
            provenance=Provenance.IMPORT,
            has_attachment=False,
            labels=("INBOX",),
            deleted_at_source=None,
        )

    def headers_of(self, message: ArchivedMessage) -> Headers:
        if self._is_damaged:
            raise Fatal("its bytes are gone")
        return self._headers

    def senders_of(self, message: ArchivedMessage) -> tuple[str, ...]:
        if self._is_damaged:
            raise Fatal("its columns are gone")
        return self._senders

    def try_on(self, condition: dict[str, Any]) -> Trial:
        trial, archive = Trial(), cast(MailReader, self)
        rules = RuleSet([rule(condition)])
        more: dict[str, Any] = {"keep": 5, "accounts": {}, "label_ids": {}, "show": lambda: None}
        try_rules(rules, archive, [self.message], NOW, trial, **more)
        return trial


@pytest.mark.req("JB-9")
@settings(max_examples=300, deadline=None)
@given(_FROM)
@example('"bank@bank.example, " <eve@example.com>')
@example("Ann <ann@example.org>, Bob <bob@example.org>")
def test_the_column_names_a_sender_that_the_headers_name(header: str) -> None:
    archive = OneMessage(f"From: {header}\nSubject: Hello\n\nText\n".encode())
    glance = glance_at(archive.message, None, {}, lambda: archive.headers_of(archive.message))
    whole = facts_in(cast(MailReader, archive), archive.message)
    if glance is not None:
        assert set(glance.senders) <= set(whole.senders)  # all of them have to fit, so that any one rules a rule out
        assert (glance.subject, glance.labels) == (whole.subject, whole.labels)
        assert dict(glance.headers) == dict(whole.headers)
        if archive.senders_of(archive.message) == glance.senders:
            assert whole.senders == glance.senders


@pytest.mark.req("UX-2", "JB-9")
def test_a_trial_reads_no_bytes_of_mail_that_its_columns_rule_out() -> None:
    damaged = OneMessage(b"From: Ann <ann@example.org>\nSubject: Hello\n\nText\n", is_damaged=True)
    for condition in ({"sender": "bob@example.org"}, {"subject_contains": "receipt"}, {"label": "Work"}):
        found = damaged.try_on(condition)
        assert (found.looked_at, found.unreadable, found.total) == (1, 0, 0)
    for asking in ({"sender": "ann@example.org"}, {"header": {"name": "X-Mailer", "contains": "a"}}):
        found = damaged.try_on(dict(asking))
        assert (found.looked_at, found.unreadable, found.total) == (0, 1, 0)


@pytest.mark.req("JB-9")
def test_of_two_senders_each_has_to_fit() -> None:
    both = OneMessage(b"From: Ann <ann@example.org>, Eve <eve@example.com>\nSubject: Hello\n\nText\n")
    assert both.try_on({"sender": "ann@example.org"}).total == 0
    assert both.try_on({"sender": ["ann@example.org", "eve@example.com"]}).total == 1


@pytest.mark.req("UX-2", "JB-9")
def test_a_rule_that_asks_for_no_header_is_decided_without_bytes() -> None:
    archive = OneMessage(b"From: Ann <ann@example.org>\nSubject: Hello\nX-Mailer: m\n\nText\n")
    archive.headers_of = _unexpected  # type: ignore[method-assign]
    assert archive.try_on({"sender": "ann@example.org"}).total == 1
    assert archive.try_on({"subject_contains": "hell", "label": "INBOX"}).total == 1
    asking = archive.try_on({"sender": "ann@example.org", "header": {"name": "X-Mailer", "contains": "m"}})
    assert (asking.unreadable, asking.total) == (1, 0)


def _unexpected(message: ArchivedMessage) -> Headers:
    raise Fatal("its bytes are gone")
