"""What local triage looks at: facts of a message's headers, each as a keyed hash. Pure.

Only the hashes are kept. Without the account's key none of them can be compared with a guess at what it stands for.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise

from postroom.mail.addresses import parse_addresses
from postroom.mail.patterns import fold
from postroom.triage.rules.facts import MessageFacts

_WORD = re.compile(r"[^\W\d_]{2,30}")
_CHARSET = re.compile(r'.*charset="?([\w-]{1,30}).*', re.DOTALL)
_SHAPE = re.compile(r"[a-z]+")
_ADDRESS_WORD = re.compile(r"[a-z]{3,30}")
_NUMBER = re.compile(r"\d+")
_MOST_WORDS = 25
_MOST_NAMES = 60
_VALUES = (
    "x-mailer",
    "user-agent",
    "precedence",
    "auto-submitted",
    "importance",
    "x-priority",
    "feedback-id",
    "sender",
)
"""Headers whose value says who made the message; of all others it counts only that they are there."""
_UNCOUNTED = frozenset({"message-id", "date", "authentication-results"})
_MANY_RECIPIENTS = 3


@dataclass(frozen=True, slots=True)
class Features:
    hashes: tuple[int, ...]
    kinds: tuple[str, ...]
    """What each hash stands for, in words for people: `sender`, `word in the subject`. Never what it says."""

    def pack(self) -> bytes:
        return array("q", self.hashes).tobytes()


def unpack(data: bytes) -> Sequence[int]:
    """As an array: a fit holds thousands of messages, each with dozens of hashes, at once."""
    found = array("q")
    found.frombytes(data)
    return found


def features_of(facts: MessageFacts, key: bytes) -> Features:
    """`key` is the account's. A fact that stands twice counts once."""
    found = {hashed(key, f"{kind}:{text}"): kind for kind, text in _facts(facts)}
    return Features(tuple(found), tuple(found.values()))


def hashed(key: bytes, text: str) -> int:
    """A signed number of 64 bits, as both databases store it."""
    digest = blake2b(text.encode("utf-8", "replace"), digest_size=8, key=key).digest()
    return int.from_bytes(digest, "big", signed=True)


def _facts(facts: MessageFacts) -> Iterator[tuple[str, str]]:
    headers = facts.headers
    domain = facts.sender.rpartition("@")[2]
    subject = facts.folded_subject
    yield from _of_sender(facts, domain)
    yield from _of_subject(facts.subject, subject, domain)
    yield from _of_recipients(facts)
    if facts.list_id:
        yield "mailing list", facts.list_id
    names = [name for name in list(headers)[:_MOST_NAMES] if name not in _UNCOUNTED]
    for name in names:
        yield "headers it has", name
    yield "all headers it has", " ".join(names)
    for name in _VALUES:
        if name in headers:
            yield f"header {name}", _NUMBER.sub("0", fold(headers[name]))[:80]
    yield from _of_making(facts, domain)
    for label in facts.labels:
        if label.startswith("category_") or label == "spam":
            yield "label of the mailbox", label
    yield "attachment", str(facts.has_attachment)


def _of_sender(facts: MessageFacts, domain: str) -> Iterator[tuple[str, str]]:
    yield "sender", facts.sender
    yield "sender domain", domain
    parts = domain.split(".")
    for start in range(1, len(parts) - 1):
        yield "sender domain", ".".join(parts[start:])
    yield "form of the sender's address", _SHAPE.sub("a", _NUMBER.sub("0", facts.sender.rpartition("@")[0]))[:40]
    yield "name of the sender's address", _NUMBER.sub("0", facts.sender.rpartition("@")[0])[:60]
    for word in _ADDRESS_WORD.findall(facts.sender.rpartition("@")[0])[:4]:
        yield "word in the sender's address", word
    if len(parts) > 1:
        yield "country of the sender", parts[-1]
    names = parse_addresses(facts.headers.get("from", ""))
    for word in _WORD.findall(fold(names[0].display_name))[:5] if names else ():
        yield "word in the sender's name", word
    answers = parse_addresses(facts.headers.get("reply-to", ""))
    if answers:
        yield "where answers go", "here" if answers[0].domain == domain else answers[0].domain


def _of_subject(written: str, subject: str, domain: str) -> Iterator[tuple[str, str]]:
    words = _WORD.findall(subject)[:_MOST_WORDS]
    for word in words:
        yield "word in the subject", word
    for first, second in pairwise(words):
        yield "words in the subject", f"{first} {second}"
    pattern = _NUMBER.sub("0", subject)[:120]
    yield "form of the subject", pattern
    yield "form of the subject from this domain", f"{domain} {' '.join(words[:2])}"
    yield "capitals in the subject", str(_capitals(written))
    yield "length of the subject", str(min(len(subject) // 15, 8))
    if _NUMBER.search(subject):
        yield "number in the subject", "yes"
    if any(char in subject for char in "!$%"):
        yield "signs in the subject", "yes"


def _of_making(facts: MessageFacts, domain: str) -> Iterator[tuple[str, str]]:
    """Traces of the program that wrote it."""
    content = fold(facts.headers.get("content-type", ""))
    yield "kind of content", content.partition(";")[0]
    yield "character set", _CHARSET.sub(r"\1", content) if "charset" in content else ""
    message_id = fold(facts.headers.get("message-id", "")).strip("<> ")
    name, _, host = message_id.rpartition("@")
    yield "where its id was made", "sender" if host and host.endswith(domain) else host
    form = _SHAPE.sub("a", _NUMBER.sub("0", name))[:40]
    yield "form of its id", form
    program = facts.headers.get("x-mailer") or facts.headers.get("user-agent", "")
    yield "program and form of its id", f"{_NUMBER.sub('0', fold(program))[:40]} {form}"
    yield "its time zone", facts.headers.get("date", "")[-5:]


def _of_recipients(facts: MessageFacts) -> Iterator[tuple[str, str]]:
    yield "number of recipients", str(min(len(facts.recipients), _MANY_RECIPIENTS))
    for address in sorted(facts.recipients)[:_MANY_RECIPIENTS]:
        yield "recipient", address


def names_of(kinds: Mapping[str, float], most: int = 3) -> list[str]:
    """The kinds of facts that spoke most for a decision, the strongest first."""
    return [kind for kind, weight in sorted(kinds.items(), key=lambda each: -each[1])[:most] if weight > 0]


def _capitals(text: str) -> int:
    """In quarters of its letters."""
    letters = [char for char in text if char.isalpha()]
    return 4 * sum(char.isupper() for char in letters) // len(letters) if letters else 0
