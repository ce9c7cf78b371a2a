"""Lists and searches of messages and threads: which match, in which order, a page at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from postroom.gmail.sim import scopes
from postroom.gmail.sim.call import Call
from postroom.gmail.sim.errors import ApiError, invalid
from postroom.gmail.sim.mailbox_state import MailboxState
from postroom.gmail.sim.mime import body_text, filenames, take_apart
from postroom.gmail.sim.model import MailSummary
from postroom.gmail.sim.order import Place
from postroom.gmail.sim.search import Candidate, Matcher, QueryError, parse
from postroom.gmail.sim.search.nodes import EVERYTHING

_HIDDEN = frozenset({"SPAM", "TRASH"})


@dataclass(frozen=True)
class Page:
    found: list[MailSummary]
    next_token: str | None
    estimate: int


class Selection:
    """The messages that a list call asks for."""

    def __init__(self, box: MailboxState, call: Call) -> None:
        self._box = box
        self._query = call.text("q")
        self._wanted = frozenset(call.many("labelIds"))
        box.store.labels.require(sorted(self._wanted))
        if self._query and not call.scopes & scopes.TO_READ_BODIES:
            raise ApiError(403, "forbidden", "Metadata scope does not support 'q' parameter")
        self._matcher = _matcher(box, self._query)
        opened = call.flag("includeSpamTrash") or self._matcher.opens_spam_and_trash or self._wanted & _HIDDEN
        self._hidden = frozenset[str]() if opened else _HIDDEN

    def accepts(self, mail: MailSummary) -> bool:
        if self._hidden & mail.label_ids or not self._wanted <= mail.label_ids:
            return False
        if not self._query:
            return True
        raw = self._box.store.raw
        return self._matcher(
            Candidate(
                summary=mail,
                body=lambda: body_text(take_apart(raw(mail.id))),
                filenames=lambda: filenames(take_apart(raw(mail.id))),
            )
        )

    def after(self, place: Place | None) -> Iterator[tuple[Place, MailSummary]]:
        walk = self._box.store.walk(self._matcher.start, self._matcher.end, place)
        return ((place, mail) for place, mail in walk if self.accepts(mail))

    @property
    def fingerprint(self) -> str:
        return f"{self._query}|{','.join(sorted(self._wanted))}|{','.join(sorted(self._hidden))}"


def page(box: MailboxState, call: Call, selection: Selection, found: Iterator[tuple[Place, MailSummary]]) -> Page:
    """The next page of what was found; one more than fits is looked for, to know whether there is another."""
    most = call.max_results()
    taken = list(islice(found, most + 1))
    kept = taken[:most]
    token = None
    if len(taken) > most:
        last = kept[-1][0]
        token = box.sealer.seal(_purpose(call, selection), [last.block, last.bucket, last.mix])
    return Page([mail for _, mail in kept], token, len(kept) if token is None else most * 2 + 1)


def start_of(box: MailboxState, call: Call, selection: Selection) -> Place | None:
    """Where the page token points; None is the beginning."""
    text = call.text("pageToken")
    if not text:
        return None
    match box.sealer.open(_purpose(call, selection), text):
        case [int(block), int(bucket), int(mix)]:
            return Place(block, bucket, mix)
        case _:
            raise invalid("Invalid pageToken")


def _purpose(call: Call, selection: Selection) -> str:
    return f"{call.route.name}|{selection.fingerprint}"


def _matcher(box: MailboxState, query: str) -> Matcher:
    try:
        node = parse(query, box.store.now_ms()) if query else EVERYTHING
    except QueryError as error:
        raise invalid(f"Invalid query: {error}") from None
    return Matcher(node, box.store.labels.find)
