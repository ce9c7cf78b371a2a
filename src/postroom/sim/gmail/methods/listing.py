"""Lists and searches of messages and threads: which match, in which order, a page at a time.

Cheap conditions are tested first; a body is read last, if at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import assert_never

from postroom.mail.query import QueryError, nodes, opens_spam_and_trash, parse, span
from postroom.sim.gmail import oauth
from postroom.sim.gmail.api_errors import ApiError, invalid
from postroom.sim.gmail.call import ApiCall, MailboxState
from postroom.sim.gmail.mailbox_store import ListPlace
from postroom.sim.gmail.raw_mail import SimPart, body_text, filenames, take_apart
from postroom.sim.gmail.sources import MailSummary

Test = Callable[["Candidate"], bool]
LabelFinder = Callable[[str], str | None]

_WORD = re.compile(r"[^\W_]+")
_USER_LABEL = "Label_"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A message as a query sees it; the functions are called only by queries about bodies or attachments."""

    summary: MailSummary
    body: Callable[[], str]
    filenames: Callable[[], list[str]]


class Matcher:
    """A query made ready to be asked of many messages."""

    def __init__(self, node: nodes.Node, label_id: LabelFinder) -> None:
        self.start, self.end = span(node)
        self.opens_spam_and_trash = opens_spam_and_trash(node)
        self._test = _compile(node, label_id)

    def __call__(self, candidate: Candidate) -> bool:
        return self._test(candidate)


def normal(text: str) -> str:
    """Words in one case, one space around each: `x in y` then finds whole words next to each other."""
    return f" {' '.join(_WORD.findall(text.casefold()))} "


def _price(node: nodes.Node) -> int:
    """How dear it is to ask: header and label questions are nearly free, a body must be written and decoded."""
    if isinstance(node, nodes.And | nodes.Or):
        return max((_price(part) for part in node.parts), default=0)
    if isinstance(node, nodes.Not):
        return _price(node.part)
    if isinstance(node, nodes.Text):
        return 3 if node.field is nodes.TextField.ANY else 2 if node.field is nodes.TextField.FILENAME else 1
    return 0


def _compile(node: nodes.Node, label_id: LabelFinder) -> Test:
    match node:
        case nodes.And(parts):
            tests = [_compile(part, label_id) for part in sorted(parts, key=_price)]
            return lambda mail: all(test(mail) for test in tests)
        case nodes.Or(parts):
            tests = [_compile(part, label_id) for part in sorted(parts, key=_price)]
            return lambda mail: any(test(mail) for test in tests)
        case nodes.Not(part):
            test = _compile(part, label_id)
            return lambda mail: not test(mail)
        case nodes.Text():
            return _text(node)
        case nodes.Labelled(label):
            wanted = label_id(label)
            return lambda mail: wanted in mail.summary.label_ids
        case _:
            return _leaf(node)


def _leaf(node: nodes.Fact) -> Test:
    match node:
        case nodes.Received(start, end):
            low, high = start or 0, end if end is not None else 1 << 62
            return lambda mail: low <= mail.summary.internal_date < high
        case nodes.Size(over, under):
            least, most = over if over is not None else -1, under if under is not None else 1 << 62
            return lambda mail: least < mail.summary.size < most
        case nodes.MessageId(value):
            return lambda mail: mail.summary.message_id.strip("<>") == value
        case nodes.HasAttachment():
            return lambda mail: mail.summary.has_attachment
        case nodes.HasUserLabel():
            return lambda mail: any(label.startswith(_USER_LABEL) for label in mail.summary.label_ids)
        case nodes.Anywhere():
            return lambda mail: True
        case nodes.InConversation() | nodes.HasConversation() | nodes.Similar():  # unknown to Gmail
            return lambda mail: False
        case _:
            assert_never(node)


def _text(node: nodes.Text) -> Test:
    wanted = normal(node.words)
    if not wanted.strip():
        return lambda mail: True
    match node.field:
        case nodes.TextField.FROM:
            return lambda mail: wanted in normal(mail.summary.sender)
        case nodes.TextField.TO:
            return lambda mail: wanted in normal(mail.summary.to)
        case nodes.TextField.CC:
            return lambda mail: wanted in normal(mail.summary.cc)
        case nodes.TextField.BCC | nodes.TextField.ATTACHMENT:
            return lambda mail: False  # a mailbox's summaries do not tell
        case nodes.TextField.SUBJECT:
            return lambda mail: wanted in normal(mail.summary.subject)
        case nodes.TextField.LIST:
            return lambda mail: wanted in normal(mail.summary.list_id)
        case nodes.TextField.FILENAME:
            return lambda mail: mail.summary.has_attachment and any(wanted in normal(name) for name in mail.filenames())
        case nodes.TextField.ANY:
            return lambda mail: _anywhere(mail, wanted)
        case _:
            assert_never(node.field)


def _anywhere(mail: Candidate, wanted: str) -> bool:
    summary = mail.summary
    headers = (summary.subject, summary.sender, summary.to, summary.cc)
    return any(wanted in normal(text) for text in headers) or wanted in normal(mail.body())


__all__ = ["Candidate", "Matcher"]


_HIDDEN = frozenset({"SPAM", "TRASH"})
_MOST_EFFORT = 10_000
"""How many messages one call looks at. A rare word in a large mailbox gives short pages, even empty ones, with a token
for the rest, so that no search stops the server for long."""
_EFFORT_OF_A_BODY = 10

_BEGINNING = ListPlace(-(1 << 62), 0, 0)

Found = tuple[ListPlace, MailSummary | None]
"""A message and its place; without a message, the place where the search was broken off."""


@dataclass(frozen=True)
class ListPage:
    found: list[MailSummary]
    next_token: str | None
    estimate: int


class Selection:
    """The messages that a list call asks for."""

    def __init__(self, box: MailboxState, call: ApiCall) -> None:
        self._box = box
        self._query = call.text("q")
        self._wanted = frozenset(call.many("labelIds"))
        box.store.labels.require(sorted(self._wanted))
        if self._query and not call.scopes & oauth.TO_READ_BODIES:
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

    def after(self, start: ListPlace | None) -> Iterator[Found]:
        """What matches, from just behind a place on, until the effort of one call is spent."""
        for place, mail in self._box.store.walk(self._matcher.start, self._matcher.end, start):
            self._effort += 1
            if self.accepts(mail):
                yield place, mail
            if self._effort >= _MOST_EFFORT:
                yield place, None
                return

    def _read(self, mail: MailSummary) -> SimPart:
        self._effort += _EFFORT_OF_A_BODY
        return take_apart(self._box.store.raw(mail.id))

    @property
    def fingerprint(self) -> str:
        return f"{self._query}|{','.join(sorted(self._wanted))}|{','.join(sorted(self._hidden))}"


def page(box: MailboxState, call: ApiCall, selection: Selection, found: Iterator[Found]) -> ListPage:
    """The next page of what was found; one more than fits is looked for, to know whether there is another."""
    most = call.max_results()
    kept: list[MailSummary] = []
    last = _BEGINNING
    for place, mail in found:
        if mail is None or len(kept) == most:
            last = place if mail is None else last
            token = box.sealer.seal(_purpose(call, selection), [last.block, last.bucket, last.mix])
            return ListPage(kept, token, most * 2 + 1)
        kept.append(mail)
        last = place
    return ListPage(kept, None, len(kept))


def start_of(box: MailboxState, call: ApiCall, selection: Selection) -> ListPlace | None:
    """Where the page token points; None is the beginning."""
    text = call.text("pageToken")
    if not text:
        return None
    match box.sealer.open(_purpose(call, selection), text):
        case [int(block), int(bucket), int(mix)]:
            return ListPlace(block, bucket, mix)
        case _:
            raise invalid("Invalid pageToken")


def _purpose(call: ApiCall, selection: Selection) -> str:
    return f"{call.route.name}|{selection.fingerprint}"


def _matcher(box: MailboxState, query: str) -> Matcher:
    try:
        node = parse(query, box.store.now_ms()) if query else nodes.EVERYTHING
    except QueryError as error:
        raise invalid(f"Invalid query: {error.problem}") from None
    return Matcher(node, box.store.labels.find)
