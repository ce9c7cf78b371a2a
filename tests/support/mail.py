"""Mail for tests: single letters, small mailboxes for the Gmail stand-in, `ingest.v1` envelopes, and files as other
programs write them (mbox, Takeout, Maildir).
"""

from __future__ import annotations

import base64
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.message import EmailMessage
from functools import lru_cache
from pathlib import Path
from typing import Any

from postroom.archive.importing.mbox import quote_from_lines
from postroom.mail.charsets import encode_words
from postroom.sim.gmail.generated import GeneratedMailbox
from postroom.sim.gmail.sources import ListedMail, ListSource, MailSummary

OWNER = "owner@example.com"
START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


def letter(
    subject: str = "Hello",
    body: str = "How are you?\n",
    *,
    sender: str = "Ann <ann@friends.example>",
    to: str = OWNER,
    headers: Mapping[str, str] | None = None,
    attachment: tuple[str, bytes] | None = None,
) -> bytes:
    return _written(subject, body, sender, to, tuple((headers or {}).items()), attachment)


@lru_cache(20_000)  # many tests have a mailbox with the same hundreds of letters, and each takes a millisecond
def _written(
    subject: str,
    body: str,
    sender: str,
    to: str,
    headers: tuple[tuple[str, str], ...],
    attachment: tuple[str, bytes] | None,
) -> bytes:
    message = EmailMessage()
    message["From"] = sender
    message["To"] = to
    message["Subject"] = subject
    for name, value in headers:
        message[name] = value
    message.set_content(body)
    if attachment:
        name, content = attachment
        message.add_attachment(content, maintype="application", subtype="pdf", filename=name)
    return message.as_bytes()


def mailbox(count: int, **labels: str) -> ListSource:
    """Letters an hour apart, the oldest first; every letter has a word of its own in subject and body."""
    mails = (
        ListedMail(
            letter(
                f"Letter number{index}", f"The word is body{index}.\n", headers={"Message-ID": f"<{index}@x.example>"}
            ),
            START_MS + index * HOUR_MS,
        )
        for index in range(count)
    )
    return ListSource(mails, email=OWNER, labels=labels)


def encoded(raw: bytes) -> str:
    return urlsafe_b64encode(raw).decode()


ME = "me@example.org"


def envelope(
    event_id: str = "18f0000000000001",
    *,
    identity: str = ME,
    raw: dict[str, str] | None = None,
    ingestion_tier: str = "metadata",
    policy_tier: str = "default",
    text: str = "A letter",
    observed_at: str = "2026-01-01T12:00:00Z",
    **control: Any,
) -> dict[str, Any]:
    """An envelope that is right; without `raw`, of the metadata tier."""
    return {
        "schema_version": "ingest.v1",
        "source": {"channel": "email", "provider": "gmail", "endpoint_identity": identity},
        "event": {"external_event_id": event_id, "external_thread_id": event_id, "observed_at": observed_at},
        "sender": {"identity": "ann@example.org", "display_name": "Ann"},
        "payload": {"raw": raw, "normalized_text": text, "attachments": []},
        "control": {
            "idempotency_key": f"gmail:{identity}:{event_id}",
            "policy_tier": policy_tier,
            "ingestion_tier": "full" if raw else ingestion_tier,
            **control,
        },
    }


def inline(content: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(content).decode()}


TAKEOUT_NAMES = {
    "INBOX": "Inbox",
    "SENT": "Sent",
    "DRAFT": "Drafts",
    "SPAM": "Spam",
    "TRASH": "Trash",
    "UNREAD": "Unread",
    "STARRED": "Starred",
    "IMPORTANT": "Important",
    "CATEGORY_PERSONAL": "Category Personal",
    "CATEGORY_SOCIAL": "Category Social",
    "CATEGORY_PROMOTIONS": "Category Promotions",
    "CATEGORY_UPDATES": "Category Updates",
    "CATEGORY_FORUMS": "Category Forums",
}


def generated_mailbox(count: int, seed: int = 1) -> GeneratedMailbox:
    return GeneratedMailbox(count, seed, "owner@example.com")


def takeout_form(summary: MailSummary, raw: bytes, names: dict[str, str]) -> bytes:
    """The message with the headers that Takeout adds: the bytes that an import of its file stores."""
    newline = b"\r\n" if b"\r\n" in raw else b"\n"
    labels = [names.get(label) or TAKEOUT_NAMES[label] for label in sorted(summary.label_ids)]
    labels.append("Archived" if "UNREAD" in summary.label_ids else "Opened")
    value = ",".join(_label(label) for label in labels).encode("ascii")
    return b"X-GM-THRID: %d%bX-Gmail-Labels: %b%b%b" % (int(summary.thread_id, 16), newline, value, newline, raw)


def write_takeout(path: Path, mailbox: GeneratedMailbox, indexes: Iterable[int] | None = None) -> None:
    names = dict(mailbox.user_labels())
    with path.open("wb") as file:
        for index in range(mailbox.count()) if indexes is None else indexes:
            summary = mailbox.summary(index)
            date = datetime.fromtimestamp(summary.internal_date / 1_000, UTC)
            file.write(f"From {int(summary.id, 16)}@xxx {date:%a %b %d %H:%M:%S} +0000 {date.year}\n".encode())
            file.write(_ended(quote_from_lines(takeout_form(summary, mailbox.raw(index), names))))


def write_mbox(path: Path, mails: Iterable[bytes]) -> None:
    with path.open("wb") as file:
        for raw in mails:
            file.write(b"From someone@example.com Thu Jan  1 00:00:00 2026\n" + _ended(quote_from_lines(raw)))


def write_maildir(path: Path, mails: Iterable[bytes]) -> None:
    for name in ("cur", "new", "tmp"):
        (path / name).mkdir(parents=True)
    for number, raw in enumerate(mails):
        (path / "cur" / f"1700000000.M{number:06}P1.host:2,S").write_bytes(raw)


def _ended(content: bytes) -> bytes:
    return content + (b"\n" if content.endswith(b"\n") else b"\n\n")


def _label(name: str) -> str:
    text = f'"{name}"' if "," in name else name
    return text if text.isascii() else " ".join(encode_words(text))
