"""The mail of the archive's benchmark: written once, the same bytes as an mbox in Takeout's form and as a Maildir.

`mailbox` is the generated mailbox, ten years of mail of every kind whose messages are short. `letters` has about 300
words in each, as unevenly common as those of a language: how much text there is decides how much an indexer has to do.
`documents` is the mailbox, in which every eighth message also carries a document of about 400 words of other messages.
"""

from __future__ import annotations

import html
import json
import random
import re
from base64 import encodebytes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from itertools import accumulate, islice
from pathlib import Path

from tests.support import documents
from tests.support.mail import takeout_form

from postroom.archive.importing.mbox import quote_from_lines
from postroom.mail.parsing import parse_mail
from postroom.sim.gmail.generated import GeneratedMailbox

OWNER = "owner@example.com"
_WORDS = 300
_VOCABULARY = 40_000
_PHRASES = 500
_SENDERS = 2_000
_SAMPLE = 2_000
DOCUMENT_EVERY = 8
_DOCUMENT_WORDS = 400
_QUOTED_FROM = 1_000
_PAGE_LINES = 10


class Kind(StrEnum):
    LETTERS = "letters"
    MAILBOX = "mailbox"
    DOCUMENTS = "documents"


@dataclass(frozen=True, slots=True)
class MailFiles:
    """Where the mail lies. `labels` and `sample` are lines of JSON: who has which label, and some of the messages."""

    folder: Path

    @property
    def mbox(self) -> Path:
        return self.folder / "mail.mbox"

    @property
    def maildir(self) -> Path:
        return self.folder / "Maildir"

    @property
    def eml(self) -> Path:
        """The files of the Maildir once more, by other names."""
        return self.folder / "eml"

    def labels(self) -> dict[str, list[str]]:
        """The labels of each file of the Maildir."""
        return {str(name): list(labels) for name, labels in json.loads((self.folder / "labels.json").read_text())}

    def sample(self) -> list[bytes]:
        return [bytes.fromhex(raw) for raw in (self.folder / "sample.hex").read_text().split()]

    @property
    def exist(self) -> bool:
        return (self.folder / "labels.json").exists()


def write(folder: Path, kind: Kind, count: int, *, with_maildir: bool) -> MailFiles:
    files = MailFiles(folder)
    for name in ("cur", "new", "tmp"):
        (files.maildir / name).mkdir(parents=True, exist_ok=True)
    files.eml.mkdir(exist_ok=True)
    labels: list[tuple[str, list[str]]] = []
    every = max(1, count // _SAMPLE)
    box = GeneratedMailbox(count, 1, OWNER)
    names = dict(box.user_labels())
    bodies = _letters() if kind is Kind.LETTERS else None
    attached = _documents(box) if kind is Kind.DOCUMENTS else None
    with files.mbox.open("wb") as mbox, (folder / "sample.hex").open("w") as sample:
        for index in range(count):
            summary = box.summary(index)
            date = datetime.fromtimestamp(summary.internal_date / 1_000, UTC)
            raw = box.raw(index) if bodies is None else _letter(index, date, next(bodies))
            if attached is not None and index % DOCUMENT_EVERY == 0:
                raw = _with_document(raw, *next(attached))
            content = takeout_form(summary, raw, names)
            mbox.write(f"From {int(summary.id, 16)}@xxx {date:%a %b %d %H:%M:%S} +0000 {date.year}\n".encode())
            mbox.write(quote_from_lines(content) + (b"\n" if content.endswith(b"\n") else b"\n\n"))
            if with_maildir:
                name = f"cur/1700000000.M{index:07}P1.host:2,S"
                (files.maildir / name).write_bytes(content)
                (files.eml / f"{index:07}.eml").hardlink_to(files.maildir / name)
                labels.append((name, sorted(names.get(label, label) for label in summary.label_ids)))
            if index % every == 0:
                sample.write(content.hex() + "\n")
    (folder / "labels.json").write_text(json.dumps(labels))
    return files


def _letters() -> Iterator[tuple[str, str, str, bytes]]:
    """Sender, subject, text and attachment; the same ones in every run."""
    dice = random.Random(1)
    vocabulary = ["".join(dice.choices("abcdefghijklmnoprstuvw", k=dice.randint(3, 10))) for _ in range(_VOCABULARY)]
    phrases = [" ".join(dice.choices(vocabulary[100:3_000], k=3)) for _ in range(_PHRASES)]
    names = [" ".join(dice.choices(vocabulary[1_000:], k=2)) for _ in range(_SENDERS)]
    weights = list(accumulate(1 / rank for rank in range(1, _VOCABULARY + 1)))
    while True:
        name = names[min(dice.randrange(_SENDERS), dice.randrange(_SENDERS))]
        text = dice.choices(vocabulary, cum_weights=weights, k=_WORDS - 7) + dice.choices(phrases, k=2)
        dice.shuffle(text)
        lines = "\n".join(" ".join(text[start : start + 12]) for start in range(0, len(text), 12))
        attachment = dice.randbytes(dice.randint(10_000, 200_000)) if dice.random() < 0.01 else b""
        sender = f"{name.title()} <{name.replace(' ', '.')}@example.org>"
        yield sender, " ".join(dice.choices(vocabulary, cum_weights=weights, k=5)), lines, attachment


def _letter(index: int, date: datetime, parts: tuple[str, str, str, bytes]) -> bytes:
    sender, subject, text, attachment = parts
    head = f"From: {sender}\nTo: {OWNER}\nMessage-ID: <{index}@example.org>\nSubject: {subject}\n"
    head += f"Date: {date:%d %b %Y %H:%M:%S} +0000\nMIME-Version: 1.0\n"
    body = f"{text} r{index}x\n"
    if not attachment:
        return f"{head}\n{body}".encode()
    start = f'{head}Content-Type: multipart/mixed; boundary="=_b"\n\n--=_b\nContent-Type: text/plain\n\n{body}\n--=_b\n'
    file = f"Content-Type: image/png\nContent-Disposition: attachment; filename=scan-{index}.png\n"
    return f"{start}{file}Content-Transfer-Encoding: base64\n\n".encode() + encodebytes(attachment) + b"\n--=_b--\n"


def document_word(number: int) -> str:
    """One that stands in this document alone."""
    return f"document{number}only"


def _documents(box: GeneratedMailbox) -> Iterator[tuple[str, bytes]]:
    """File name and content, of five kinds by turns."""
    dice = random.Random(2)
    every = max(1, box.count() // _QUOTED_FROM)
    texts = [parse_mail(box.raw(index)).best_text.split() for index in range(0, box.count(), every)]
    makers: dict[str, Callable[[list[str]], bytes]] = {
        "txt": lambda lines: "\n".join(lines).encode(),
        "csv": lambda lines: "\n".join(line.replace(" ", ",") for line in lines).encode(),
        "html": lambda lines: "".join(f"<p>{html.escape(line)}</p>" for line in lines).encode(),
        "docx": lambda lines: documents.docx(*lines),
        "pdf": _pages,
    }
    number = 0
    while True:
        for ending, make in makers.items():
            words = [document_word(number)]
            while len(words) < _DOCUMENT_WORDS:
                words += dice.choice(texts)
            words = words[:_DOCUMENT_WORDS]
            lines = [" ".join(words[start : start + 12]) for start in range(0, len(words), 12)]
            yield f"report-{number}.{ending}", make(lines)
            number += 1


def _pages(lines: list[str]) -> bytes:
    plain = [re.sub(r"[^ -~]|[()\\\\]", "", line) for line in lines]
    return documents.pdf(
        *(" ".join(islice(plain, start, start + _PAGE_LINES)) for start in range(0, len(plain), _PAGE_LINES))
    )


def _with_document(raw: bytes, name: str, content: bytes) -> bytes:
    """The message as the first part of one that has this file too."""
    head, _, body = raw.partition(b"\r\n\r\n")
    fields = re.split(rb"\r\n(?![ \t])", head)
    moved = [field for field in fields if field.lower().startswith(b"content-")]
    kept = [field for field in fields if field not in moved]
    boundary = b"=_with_document"
    file = b'Content-Type: application/octet-stream\r\nContent-Disposition: attachment; filename="%s"' % name.encode()
    return b"\r\n".join(
        (
            *kept,
            b'Content-Type: multipart/mixed; boundary="%s"\r\n' % boundary,
            b"--" + boundary,
            *moved,
            b"",
            body,
            b"--" + boundary,
            file,
            b"Content-Transfer-Encoding: base64\r\n",
            encodebytes(content).replace(b"\n", b"\r\n") + b"--" + boundary + b"--\r\n",
        )
    )
