"""Lists and searches of messages and threads: which match, in which order, a page at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from postroom.gmail.sim import scopes
from postroom.gmail.sim.call import Call
from postroom.gmail.sim.errors import ApiError, invalid
from postroom.gmail.sim.mailbox_state import MailboxState
from postroom.gmail.sim.mime import Part, body_text, filenames, take_apart
from postroom.gmail.sim.model import MailSummary
from postroom.gmail.sim.order import Place
from postroom.gmail.sim.search import Candidate, Matcher
from postroom.mail.query import QueryError, parse
from postroom.mail.query.nodes import EVERYTHING

_HIDDEN = frozenset({"SPAM", "TRASH"})
_MOST_EFFORT = 10_000
"""How many messages one call looks at. A rare word in a large mailbox gives short pages, even empty ones, with a token
for the rest, so that no search stops the server for long."""
_EFFORT_OF_A_BODY = 10

_BEGINNING = Place(-(1 << 62), 0, 0)

Found = tuple[Place, MailSummary | None]
"""A message and its place; without a message, the place where the search was broken off."""


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
        self._effort = 0

    def accepts(self, mail: MailSummary) -> bool:
        if self._hidden & mail.label_ids or not self._wanted <= mail.label_ids:
            return False
        if not self._query:
            return True
        return self._matcher(Candidate(mail, lambda: body_text(self._read(mail)), lambda: filenames(self._read(mail))))

    def after(self, start: Place | None) -> Iterator[Found]:
        """What matches, from just behind a place on, until the effort of one call is spent."""
        for place, mail in self._box.store.walk(self._matcher.start, self._matcher.end, start):
            self._effort += 1
            if self.accepts(mail):
                yield place, mail
            if self._effort >= _MOST_EFFORT:
                yield place, None
                return

    def _read(self, mail: MailSummary) -> Part:
        self._effort += _EFFORT_OF_A_BODY
        return take_apart(self._box.store.raw(mail.id))

    @property
    def fingerprint(self) -> str:
        return f"{self._query}|{','.join(sorted(self._wanted))}|{','.join(sorted(self._hidden))}"


def page(box: MailboxState, call: Call, selection: Selection, found: Iterator[Found]) -> Page:
    """The next page of what was found; one more than fits is looked for, to know whether there is another."""
    most = call.max_results()
    kept: list[MailSummary] = []
    last = _BEGINNING
    for place, mail in found:
        if mail is None or len(kept) == most:
            last = place if mail is None else last
            token = box.sealer.seal(_purpose(call, selection), [last.block, last.bucket, last.mix])
            return Page(kept, token, most * 2 + 1)
        kept.append(mail)
        last = place
    return Page(kept, None, len(kept))


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
        raise invalid(f"Invalid query: {error.problem}") from None
    return Matcher(node, box.store.labels.find)
