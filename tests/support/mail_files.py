"""Generated mail written to files as other programs write them: mbox, Takeout, Maildir."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from postroom.archive.mbox_format import quoted
from postroom.gmail.sim.mailbox import GeneratedMailbox
from postroom.gmail.sim.model import MailSummary
from postroom.mail.encoded_words import encode_words

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


def generated(count: int, seed: int = 1) -> GeneratedMailbox:
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
            file.write(_ended(quoted(takeout_form(summary, mailbox.raw(index), names))))


def write_mbox(path: Path, mails: Iterable[bytes]) -> None:
    with path.open("wb") as file:
        for raw in mails:
            file.write(b"From someone@example.com Thu Jan  1 00:00:00 2026\n" + _ended(quoted(raw)))


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
