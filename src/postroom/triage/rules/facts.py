"""What rules look at: one message's facts, each worked out when the first rule asks for it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from postroom.mail.addresses import canonical_address, parse_addresses
from postroom.mail.patterns import LONGEST_TEXT, fold

_LIST_ID = re.compile(r"<([^<>]*)>[^<>]*$")


@dataclass(frozen=True)
class MailFacts:
    account_id: str | None
    senders: tuple[str, ...]
    """Every address in `From`, in its compared form. A rule about the sender has to fit them all: a message with two
    senders is from neither alone, or a forger need only add one."""
    subject: str
    headers: Mapping[str, str]
    """By lowercase name, as `mail/triage_headers.py` keeps them."""
    labels: frozenset[str]
    """Names and ids, as `label_key` writes them."""
    has_attachment: bool
    size_bytes: int | None
    """None: not known, and then it is neither large nor small."""
    received_at: datetime

    @property
    def sender(self) -> str:
        """The first address in `From`; empty if there is none."""
        return self.senders[0] if self.senders else ""

    @cached_property
    def sender_domains(self) -> tuple[str, ...]:
        return tuple(sender.rpartition("@")[2] for sender in self.senders)

    @cached_property
    def folded_subject(self) -> str:
        return fold(self.subject)

    @cached_property
    def subject_bytes(self) -> bytes:
        """As patterns search it."""
        return self.subject[:LONGEST_TEXT].encode("utf-8", "replace")

    def folded_header(self, name: str) -> str:
        """Empty if the message has none of that name."""
        if name not in self._folded_headers:
            self._folded_headers[name] = fold(self.headers.get(name, ""))
        return self._folded_headers[name]

    @cached_property
    def _folded_headers(self) -> dict[str, str]:
        return {}

    @cached_property
    def recipients(self) -> frozenset[str]:
        """To whom it went openly: every address in `To` and `Cc`, in its compared form."""
        values = [self.headers[name] for name in ("to", "cc") if name in self.headers]
        return frozenset(address.canonical for address in parse_addresses(*values))

    @cached_property
    def list_id(self) -> str | None:
        """The mailing list's own id, without the name that stands before it."""
        text = self.headers.get("list-id")
        return None if text is None else list_key(text)


def stored_facts(
    *,
    account_id: str | None,
    sender: str,
    subject: str | None,
    headers: Mapping[str, object] | None,
    labels: Iterable[str] | None,
    has_attachment: bool,
    size_bytes: int | None,
    received_at: datetime,
    label_ids: Mapping[str, str] | None = None,
) -> MailFacts:
    """Of a message as the control database has it; `label_ids` are the ids of the account's labels by `label_key`."""
    texts = {str(name).lower(): str(value) for name, value in (headers or {}).items()}
    return MailFacts(
        account_id=account_id,
        senders=_senders(texts, sender),
        subject=subject or "",
        headers=texts,
        labels=label_keys(labels or (), label_ids or {}),
        has_attachment=has_attachment,
        size_bytes=size_bytes,
        received_at=received_at,
    )


def _senders(headers: Mapping[str, str], envelope_sender: str) -> tuple[str, ...]:
    """Those of the message itself; of mail whose headers were not kept, the one that its connector named."""
    found = tuple(dict.fromkeys(address.canonical for address in parse_addresses(headers.get("from", ""))))
    return found or ((canonical_address(envelope_sender),) if envelope_sender else ())


def label_key(label: str) -> str:
    """The form in which labels are compared: Gmail has no two whose names differ only in capitals."""
    return label.strip().casefold()


def label_keys(labels: Collection[str] | Iterable[str], ids: Mapping[str, str]) -> frozenset[str]:
    names = {label_key(label) for label in labels}
    return frozenset(names | {label_key(ids[name]) for name in names if name in ids})


def list_key(text: str) -> str:
    found = _LIST_ID.search(text)
    return (found[1] if found else text).strip().casefold()
