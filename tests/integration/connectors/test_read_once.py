"""The archive owns the text of mail: a message is read once on its way in, and whichever route it took, the model sees
the same text and the same files."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from postroom.archive.messages import IncomingMail, Provenance
from postroom.db import Database
from postroom.reading import mail as reading
from tests.support.connectors import ConnectorRig, connector_rig, listed, ms, source_of
from tests.support.mail import OWNER, letter

BULK = {"List-Unsubscribe": "<https://x.example/off>", "Precedence": "bulk"}


def rich_letter() -> bytes:
    """A covering note with an enclosed message, an invitation and a file."""
    message = EmailMessage()
    message["From"] = "Ann <ann@friends.example>"
    message["To"] = OWNER
    message["Subject"] = "Forwarded"
    message["Message-ID"] = "<rich@x.example>"
    message.set_content("See the enclosed letter.\n")
    message.add_attachment(b"%PDF", maintype="application", subtype="pdf", filename="plan.pdf")
    enclosed = EmailMessage()
    enclosed["Subject"] = "The first letter"
    enclosed.set_content("Words of the enclosed letter.\n")
    message.add_attachment(enclosed)
    message.add_attachment("BEGIN:VCALENDAR\r\nSUMMARY:Lunch\r\nEND:VCALENDAR\r\n", subtype="calendar")
    return message.as_bytes()


class Readings:
    """How often mail was parsed, by what was asked of the parser."""

    def __init__(self) -> None:
        self.of: list[str] = []

    def counting(self, name: str, real: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
        def counted(raw: bytes) -> Any:
            self.of.append(name)
            return real(raw)

        return counted


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> Readings:
    found = Readings()
    for name in ("parse_mail", "parse_headers"):
        monkeypatch.setattr(reading, name, found.counting(name, getattr(reading, name)))
    return found


def deliver(stage: ConnectorRig, raw: bytes) -> str:
    return stage.sim.control.deliver(raw, frozenset({"INBOX"}), internal_date=ms(stage.clock.now()))


@pytest.mark.parametrize(
    ("raw", "tier"),
    [(rich_letter(), "full"), (letter("Weekly", headers=BULK), "metadata")],
    ids=["full tier", "metadata tier"],
)
async def test_a_live_message_is_parsed_once(
    database: Database, tmp_path: Path, readings: Readings, raw: bytes, tier: str
) -> None:
    async with connector_rig(source_of([listed(0, 1_700_000_000_000)]), database, tmp_path) as stage:
        await stage.passes.live()
        fresh = deliver(stage, raw)
        readings.of.clear()
        await stage.passes.live()
        assert (await stage.rows())[fresh].ingestion_tier == tier
        assert readings.of == ["parse_mail"]


async def test_a_message_of_a_backfill_is_parsed_once(database: Database, tmp_path: Path, readings: Readings) -> None:
    async with connector_rig(source_of([listed(0, 1_700_000_000_000)]), database, tmp_path) as stage:
        readings.of.clear()
        outcome = await stage.passes.on_demand("in:anywhere")
        assert (outcome.ingested, readings.of) == (1, ["parse_mail"])


async def test_the_model_sees_the_same_of_fresh_mail_and_of_mail_that_the_archive_held(
    database: Database, tmp_path: Path
) -> None:
    raw = rich_letter()
    async with connector_rig(source_of([listed(0, 1_700_000_000_000)]), database, tmp_path) as stage:
        await stage.passes.live()
        fresh, held = deliver(stage, raw), deliver(stage, raw)
        received = datetime.fromtimestamp(ms(stage.clock.now()) / 1_000, UTC)
        await stage.bench.archive.of(OWNER).store([IncomingMail(raw, Provenance.API, held, received=received)])
        tally = await stage.passes.live()
        assert tally.stored == 1
        rows = await stage.rows()
    for word in ("See the enclosed letter.", "Words of the enclosed letter.", "SUMMARY:Lunch"):
        assert word in rows[fresh].normalized_text
    assert "plan.pdf" in [each.get("filename") for each in rows[fresh].attachments]
    assert seen(rows[fresh]) == seen(rows[held])


def seen(row: Any) -> tuple[Any, ...]:
    return row.normalized_text, row.attachments, row.subject, row.headers, row.category, row.policy_tier
