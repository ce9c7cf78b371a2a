"""The generated mailbox: the same everywhere, true to its own summaries, and as varied and as ugly as real mail."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from collections import Counter
from datetime import UTC, datetime
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.domain.errors import BadInput
from postroom.mail.addresses import parse_addresses
from postroom.mail.charsets import decode_words
from postroom.mail.parsing import ParsedMail, parse_mail
from postroom.sim.gmail.generated import GeneratedCategory, GeneratedMailbox, MailDefect
from postroom.sim.gmail.sources import MailboxSource, MailSummary

# The same examples on every run; how long one takes is not what these tests are about.
steady = settings(deadline=None, derandomize=True)

OWNER = "ana.silva@example.org"
SIZE = 4_000
SEED = 7
DIGEST_SCRIPT = """
import hashlib
from postroom.sim.gmail.generated import GeneratedMailbox

box = GeneratedMailbox(100_000, 11, "ana.silva@example.org")
digest = hashlib.sha256()
for index in [*range(300), *range(50_000, 50_300)]:
    digest.update(box.raw(index))
    summary = box.summary(index)
    digest.update(repr((sorted(summary.label_ids), summary.id, summary.thread_id, summary.subject)).encode())
print(digest.hexdigest())
"""

# Changes only when the generated mail is changed on purpose: every machine and every Python must arrive at it.
GOLDEN = "00c11e8887d8ee2de9e2c413a6d70724240c941a3390779b44d11ddf7ecc9b7b"


@cache
def mailbox() -> GeneratedMailbox:
    return GeneratedMailbox(SIZE, SEED, OWNER)


@cache
def summaries() -> tuple[MailSummary, ...]:
    return tuple(mailbox().summary(index) for index in range(SIZE))


@cache
def parsed() -> tuple[ParsedMail, ...]:
    return tuple(parse_mail(mailbox().raw(index)) for index in range(SIZE))


def test_a_mailbox_is_a_mail_source() -> None:
    source: MailboxSource = mailbox()
    assert (source.email, source.count()) == (OWNER, SIZE)


def test_the_same_seed_gives_the_same_bytes_in_every_process() -> None:
    digests = set()
    for hash_seed in ("0", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "LC_ALL": "C", "TZ": "Asia/Tokyo"}
        ran = subprocess.run([sys.executable, "-c", DIGEST_SCRIPT], env=environment, capture_output=True, check=True)
        digests.add(ran.stdout.decode().strip())
    assert digests == {GOLDEN}


def test_another_seed_gives_another_mailbox() -> None:
    one, other = GeneratedMailbox(100, 1, OWNER), GeneratedMailbox(100, 2, OWNER)
    assert not {one.summary(n).id for n in range(100)} & {other.summary(n).id for n in range(100)}
    assert [one.summary(n).subject for n in range(100)] != [other.summary(n).subject for n in range(100)]


def test_a_message_does_not_depend_on_what_was_read_before() -> None:
    fresh = GeneratedMailbox(SIZE, SEED, OWNER)
    for index in (SIZE - 1, 5, 1_300, 5):
        assert fresh.raw(index) == mailbox().raw(index)
        assert fresh.summary(index) == summaries()[index]


def test_ids_are_unique_and_lead_back_to_their_message() -> None:
    ids = [summary.id for summary in summaries()]
    assert len(set(ids)) == SIZE
    assert all(len(found) == 16 and found == f"{int(found, 16):x}" for found in ids)
    assert [mailbox().index_of(found) for found in ids] == list(range(SIZE))


@pytest.mark.parametrize("wrong", ["", "0", "x" * 16, "0" * 16, "F" * 16, " 123456789abcde ", "0" * 17])
def test_an_id_of_no_message_is_not_found(wrong: str) -> None:
    assert mailbox().index_of(wrong) is None
    assert mailbox().thread(wrong) == ()


def test_dates_never_fall_and_span_ten_growing_years() -> None:
    dates = [mailbox().internal_date(index) for index in range(SIZE)]
    assert dates == sorted(dates)
    assert dates == [summary.internal_date for summary in summaries()]
    moments = [datetime.fromtimestamp(date / 1000, UTC) for date in dates]
    assert (moments[0].year, moments[-1].year) == (2016, 2026)
    years = Counter(moment.year for moment in moments)
    assert years[2025] > 1.5 * years[2018]
    weekdays = Counter(moment.weekday() for moment in moments)
    assert weekdays[1] > 1.5 * weekdays[6]
    hours = Counter(moment.hour for moment in moments)
    assert hours[9] > 4 * hours[3]


@settings(steady, max_examples=30)
@given(st.integers(1, 10**9), st.integers(-(10**20), 10**20), st.data())
def test_a_mailbox_of_any_size_and_seed_keeps_its_order(size: int, seed: int, data: st.DataObject) -> None:
    box = GeneratedMailbox(size, seed, OWNER)
    index = data.draw(st.integers(0, size - 1))
    summary = box.summary(index)
    assert box.index_of(summary.id) == index
    assert index in box.thread(summary.thread_id)
    assert index == 0 or box.internal_date(index - 1) <= box.internal_date(index)
    assert box.raw(index) == box.raw(index)


def test_threads_are_whole_and_counted() -> None:
    members: dict[str, list[int]] = {}
    for index, summary in enumerate(summaries()):
        members.setdefault(summary.thread_id, []).append(index)
    assert mailbox().thread_count() == len(members)
    for thread_id, indexes in members.items():
        assert list(mailbox().thread(thread_id)) == indexes
        assert summaries()[indexes[0]].id == thread_id
    assert mailbox().thread(next(s.id for s in summaries() if s.id != s.thread_id)) == ()
    assert max(map(len, members.values())) >= 5


def test_replies_refer_to_the_messages_before_them_also_to_those_the_owner_sent() -> None:
    sent = {summary.message_id for summary in summaries() if "SENT" in summary.label_ids}
    answers_to_sent = 0
    for index, (summary, mail) in enumerate(zip(summaries(), parsed(), strict=True)):
        earlier = [n for n in mailbox().thread(summary.thread_id) if n < index]
        assert mail.references == tuple(summaries()[n].message_id for n in earlier)
        assert mail.in_reply_to == (summaries()[earlier[-1]].message_id if earlier else None)
        answers_to_sent += mail.in_reply_to in sent and "SENT" not in summary.label_ids
    assert answers_to_sent > SIZE * 0.02


def test_a_summary_agrees_with_its_message() -> None:
    for summary, mail in zip(summaries(), parsed(), strict=True):
        headers = mail.headers
        assert decode_words(headers.get("From") or "") == summary.sender
        assert decode_words(headers.get("To") or "") == summary.to
        assert decode_words(headers.get("Cc") or "") == summary.cc
        assert mail.subject == summary.subject
        assert (mail.message_id or "") == summary.message_id
        assert (headers.get("List-ID") or "") == summary.list_id
        assert mail.from_ == parse_addresses(summary.sender)
        assert bool(mail.attachments) == summary.has_attachment or mail.problems or mail.headers.get("Auto-Submitted")


def test_the_estimated_size_is_near_the_real_one() -> None:
    real = sum(len(mailbox().raw(index)) for index in range(1_000))
    estimated = sum(summary.size for summary in summaries()[:1_000])
    assert 0.6 < estimated / real < 1.6


def test_every_kind_of_mail_has_its_share() -> None:
    shares = Counter(summary.category for summary in summaries())
    assert set(shares) == set(GeneratedCategory)
    bounds = {
        GeneratedCategory.RELATIONSHIP: (0.15, 0.35),
        GeneratedCategory.FINANCE: (0.07, 0.2),
        GeneratedCategory.HEALTH: (0.02, 0.08),
        GeneratedCategory.TRAVEL: (0.02, 0.09),
        GeneratedCategory.NEWSLETTER: (0.08, 0.2),
        GeneratedCategory.PROMOTION: (0.08, 0.2),
        GeneratedCategory.SPAM: (0.03, 0.1),
        GeneratedCategory.PERSONAL: (0.005, 0.03),
    }
    for category, (low, high) in bounds.items():
        assert low < shares[category] / SIZE < high, category


def test_labels_are_those_gmail_and_the_owner_would_give() -> None:
    known = {"INBOX", "UNREAD", "SENT", "SPAM", "TRASH", "STARRED", "IMPORTANT", *mailbox().user_labels()}
    known |= {f"CATEGORY_{tab}" for tab in ("PERSONAL", "UPDATES", "PROMOTIONS", "SOCIAL", "FORUMS")}
    used = Counter(label for summary in summaries() for label in summary.label_ids)
    assert set(used) == known
    for summary in summaries():
        labels = summary.label_ids
        assert not ({"SPAM", "TRASH"} & labels and "INBOX" in labels)
        from_owner = summary.sender.endswith(f"<{OWNER}>")
        assert ("SENT" in labels) == from_owner


def test_lists_banks_invitations_and_forgeries_look_like_themselves() -> None:
    pairs = list(zip(summaries(), parsed(), strict=True))
    of = {category: [mail for summary, mail in pairs if summary.category == category] for category in GeneratedCategory}
    assert all(mail.has_list_unsubscribe for mail in of[GeneratedCategory.NEWSLETTER] + of[GeneratedCategory.PROMOTION])
    assert any(mail.precedence == "bulk" for mail in of[GeneratedCategory.NEWSLETTER])
    assert any(mail.list_id for mail in of[GeneratedCategory.LIST])
    no_reply = [
        mail for mail in of[GeneratedCategory.FINANCE] if mail.from_[0].address.startswith(("no-reply", "noreply"))
    ]
    assert no_reply
    assert not any(mail.has_list_unsubscribe for mail in no_reply)
    assert any(part.method == "REQUEST" for mail in of[GeneratedCategory.RELATIONSHIP] for part in mail.calendars)
    verdicts = Counter("dmarc=fail" in (mail.authentication_results or ("",))[0] for mail in of[GeneratedCategory.SPAM])
    assert min(verdicts.values()) > 10
    contacts = set(mailbox().contacts)
    assert any(
        mail.from_[0].canonical in contacts and "dmarc=fail" in mail.authentication_results[0]
        for mail in of[GeneratedCategory.SPAM]
    )
    assert not any("fail" in value for mail in of[GeneratedCategory.HEALTH] for value in mail.authentication_results)


def test_attachments_are_what_they_say() -> None:
    magic = {"application/pdf": b"%PDF-", "image/png": b"\x89PNG", "application/zip": b"PK\x03\x04"}
    seen = Counter[str]()
    for mail in parsed():
        for attachment in mail.attachments:
            start = magic.get(attachment.content_type)
            if start:
                seen[attachment.content_type] += 1
                assert attachment.content().startswith(start)
                assert attachment.filename
    assert set(seen) == set(magic)


def test_mail_comes_in_many_charsets_and_languages() -> None:
    text = "".join(mail.subject for mail in parsed())
    for letter in "üéñłřяїωşしま好會안שم":
        assert letter in text or any(letter in mail.best_text for mail in parsed()), letter
    raw = b"".join(mailbox().raw(index) for index in range(0, SIZE, 2)).lower()
    for charset in (
        b"iso-8859-1;",
        b"koi8-r",
        b"iso-2022-jp",
        b"gb2312",
        b"euc-kr",
        b"windows-1255",
        b"big5",
        b"utf-8",
    ):
        assert charset.rstrip(b";") in raw


EXPECTED = {
    MailDefect.NO_MESSAGE_ID: "Message-ID is missing",
    MailDefect.BROKEN_DATE: "Date cannot be read",
    MailDefect.EIGHT_BIT_HEADER: "8-bit characters in a header",
    MailDefect.WRONG_CHARSET: "text is not in its declared charset",
    MailDefect.UNKNOWN_CHARSET: "charset x-unknown-charset is unknown",
    MailDefect.DEEP: "parts are nested deeper",
    MailDefect.CUT_OFF: "a multipart ends early",
    MailDefect.NUL: "NUL characters were left out",
    MailDefect.DAMAGED_BASE64: "base64 is damaged",
}


def test_every_message_is_read_and_only_the_ugly_ones_have_problems() -> None:
    for index, mail in enumerate(parsed()):
        ugly = mailbox().ugliness(index)
        expected = EXPECTED.get(ugly) if ugly else None
        if expected is None:
            assert mail.problems == (), index
        else:
            assert any(expected in problem for problem in mail.problems), (index, ugly)
        assert mail.text or mail.html or ugly is MailDefect.DEEP


def test_the_ugly_share_is_small_and_complete() -> None:
    box = GeneratedMailbox(100_000, 3, OWNER)
    found = Counter(ugly for index in range(20_000) if (ugly := box.ugliness(index)))
    assert set(found) == set(MailDefect)
    assert 0.008 < found.total() / 20_000 < 0.03


def test_message_ids_repeat_only_in_ugly_mail() -> None:
    ids = Counter(s.message_id for n, s in enumerate(summaries()) if mailbox().ugliness(n) is None)
    assert set(ids.values()) == {1}
    box = GeneratedMailbox(20_000, 3, OWNER)
    numbered = [n for n in range(20_000) if box.ugliness(n) is MailDefect.SAME_MESSAGE_ID]
    assert len({box.summary(n).message_id for n in numbered}) < len(numbered)


def test_a_huge_mailbox_costs_no_memory() -> None:
    tracemalloc.start()
    try:
        box = GeneratedMailbox(5_000_000, 1, OWNER)
        for index in range(0, 5_000_000, 10_000):
            box.summary(index)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20 << 20
    assert box.thread_count() > 3_000_000


def test_bad_sizes_addresses_and_indexes_are_refused() -> None:
    with pytest.raises(BadInput, match="messages"):
        GeneratedMailbox(-1, 1, OWNER)
    for address in ("ana", "ana@@x", "ana @x.org", "ána@x.org", "ana@x.org\r\nBcc: x@y.org", ""):
        with pytest.raises(BadInput, match="email"):
            GeneratedMailbox(1, 1, address)
    with pytest.raises(BadInput, match="index"):
        mailbox().raw(SIZE)
    empty = GeneratedMailbox(0, 1, OWNER)
    assert (empty.count(), empty.thread_count()) == (0, 0)
