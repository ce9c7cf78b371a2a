"""What the model gets besides the message, read from the control database: directions, labels, the conversation
so far, and the addresses to which mail may be forwarded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from sqlalchemy import String, bindparam, func, literal, or_, select

from postroom.accounts.mailbox_state import KnownLabel, for_classifier, labels_of
from postroom.db import Prepared, Tx
from postroom.db.tables.mail import contacts, messages
from postroom.mail.addresses import canonical_address, parse_addresses
from postroom.telemetry import logs
from postroom.triage.choices import MOST_ADDRESS_BYTES, MOST_LABEL_CHOICES_BYTES, ToolOffer, bounded
from postroom.triage.guidance import Guidance, guidance_for
from postroom.triage.prompt import Briefing, EarlierMail
from postroom.triage.records import TriageMessage

log = logs.get(__name__)

_ADDRESS = re.compile(r"[A-Za-z0-9._%+'-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,10}")
_SHORTEST_NAME = 5
_MOST_SENDERS = 50
_TEXT_READ = 20_000
"""Of an earlier message; more never has room in a prompt."""


def briefing_for(tx: Tx, message: TriageMessage, thread_messages: int) -> Briefing:
    guidance = guidance_for(tx, message.account_id, *(message.facts.senders or (message.mail.sender,)))
    if guidance.left_out:
        log.info("guidance.left_out", left_out=guidance.left_out)
    account_id = message.account_id
    known = [] if account_id is None else tx.shared(("briefing labels", account_id), lambda: labels_of(tx, account_id))
    usable = for_classifier(known)
    instructions = [*guidance.directions, *(rule.text for rule in guidance.rules)]
    return Briefing(
        directions=guidance.directions,
        rules=_worded(guidance),
        labels=tuple((label.name, label.description or "") for label in usable),
        kept_back=_kept_back(known),
        thread=_thread(tx, message, thread_messages),
        offer=ToolOffer(
            labels=bounded([label.name for label in usable], MOST_LABEL_CHOICES_BYTES),
            on_message=_on_message(message, known),
            forward_to=bounded(named_addresses(tx, instructions), MOST_ADDRESS_BYTES),
        ),
    )


def _worded(guidance: Guidance) -> tuple[str, ...]:
    return tuple(f"{rule.name}: {rule.text}" for rule in guidance.rules)


def _kept_back(known: Sequence[KnownLabel]) -> frozenset[str]:
    """Labels that the model may not use are withheld from it, by name and by id."""
    private = [label for label in known if not label.available_to_classifier]
    return frozenset(text for label in private for text in (label.name, label.label_id))


def _on_message(message: TriageMessage, known: Sequence[KnownLabel]) -> frozenset[str]:
    """Its labels by name; a row may have the ids of the owner's own."""
    names = {label.label_id: label.name for label in known}
    return frozenset(names.get(label, label) for label in message.mail.labels)


_EARLIER = Prepared(
    select(
        messages.c.sender_identity,
        messages.c.subject,
        func.substr(messages.c.normalized_text, 1, _TEXT_READ, type_=String).label("text"),
        messages.c.received_at,
        messages.c.direction,
    )
    .where(messages.c.account_id == bindparam("account"), messages.c.external_thread_id == bindparam("thread"))
    .where(messages.c.received_at <= bindparam("until"), messages.c.id != bindparam("the_message"))
    .where(messages.c.ingestion_tier == "full")
    .order_by(messages.c.received_at.desc(), messages.c.id.desc())
    .limit(bindparam("most"))
)


def _thread(tx: Tx, message: TriageMessage, most: int) -> tuple[EarlierMail, ...]:
    """What was said before in the same conversation. Mail of which only the envelope is kept stays out: nothing of it
    may reach a model."""
    if message.account_id is None or message.thread_id is None or most == 0:
        return ()
    which: dict[str, Any] = {"account": message.account_id, "thread": message.thread_id, "the_message": message.id}
    which |= {"until": message.mail.received_at, "most": most}
    newest_first = [
        EarlierMail(row.sender_identity, row.subject, row.text or "", row.received_at, row.direction == "outbound")
        for row in tx.run(_EARLIER, which)
    ]
    return tuple(reversed(newest_first))


def contacts_among(tx: Tx, message: TriageMessage) -> tuple[str, ...]:
    """Those whom the message names as its senders and whom the contacts have, whether or not it proves to be theirs."""
    mail = message.mail
    written = {name.lower(): str(value) for name, value in mail.headers.items()}
    named = [written.get("from", ""), written.get("sender", "")]
    if "list-id" not in written:  # a list has answers sent to itself, and the owner may have written there
        named.append(written.get("reply-to", ""))
    found = [canonical_address(mail.sender), *message.facts.senders]
    found += [address.canonical for text in named for address in parse_addresses(text)]
    asked = list(dict.fromkeys(found))[:_MOST_SENDERS]
    known = tx.run(_known_of(len(asked)), {f"address_{number}": address for number, address in enumerate(asked)})
    return tuple(sorted(row.address for row in known))


@cache
def _known_of(number: int) -> Prepared:
    """Of so many addresses those that are contacts."""
    asked: list[Any] = [bindparam(f"address_{each}") for each in range(number)]
    return Prepared(select(contacts.c.address).where(contacts.c.address.in_(asked)))


def named_addresses(tx: Tx, instructions: Iterable[str]) -> list[str]:
    """Whom the owner's words name: by address, or by the name under which the contacts have one address."""
    text = "\n".join(instructions)
    return tx.shared(("addresses named", text), lambda: _named_in(tx, text))


def _named_in(tx: Tx, text: str) -> list[str]:
    if not text:
        return []
    written = [canonical_address(address.strip(".'")) for address in _ADDRESS.findall(text)]
    return list(dict.fromkeys([*written, *_contacts_named(tx, text)]))


def _contacts_named(tx: Tx, text: str) -> list[str]:
    """A name that two contacts bear names neither. The names of people that mail was sent to are not believed: they
    may be what a stranger called himself."""
    folded = text.casefold()
    name = contacts.c.name
    candidates = (
        select(name, contacts.c.address)
        .where(contacts.c.source != "sent", func.length(name) >= _SHORTEST_NAME)
        .where(or_(literal(text).contains(name), literal(folded).contains(func.lower(name))))
    )
    by_name: dict[str, set[str]] = {}
    for row in tx.execute(candidates):
        by_name.setdefault(row.name.casefold(), set()).add(row.address)
    return [
        next(iter(addresses))
        for bearer, addresses in sorted(by_name.items())
        if len(addresses) == 1 and re.search(rf"(?<!\w){re.escape(bearer)}(?!\w)", folded)
    ]
