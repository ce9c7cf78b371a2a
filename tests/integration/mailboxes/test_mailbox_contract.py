"""What every `Mailbox` must do, whoever provides it. A fixture runs the suite over each implementation.

A provider joins with a `Provider`: its mailbox, and a way to put mail into it from outside.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest

from postroom.domain.errors import PostroomError
from postroom.mailboxes.errors import CallRefused, Gone, HistoryExpired, MailboxUnavailable
from postroom.mailboxes.gmail.mailbox import GmailMailbox
from postroom.mailboxes.labels import LabelNames
from postroom.mailboxes.ports import PriorityLane
from postroom.mailboxes.protocol import (
    Detail,
    Got,
    Mailbox,
    MailboxChange,
    MissingMessage,
    Move,
    NewMessage,
    RemoteMessage,
    Span,
    append_each,
)
from postroom.mailboxes.reader import compare, gone_of
from postroom.sim.gmail.server import running_sim
from postroom.sim.gmail.sources import ListedMail, ListSource
from tests.support.dovecot import MailServer, dovecot
from tests.support.gmail_sim import client_of
from tests.support.imap import BARE, crlf, rig_on
from tests.support.imap_servers import cyrus, pymap
from tests.support.mail import OWNER, letter

pytestmark = pytest.mark.req("IM-2")
NOON = 1_750_000_000
"""The second at which the first of the letters was received; the others follow a second apart."""
COUNT = 7


@dataclass(frozen=True)
class Provider:
    mailbox: Mailbox
    deliver: Callable[[bytes, frozenset[str]], str]
    """Mail arrives from outside; the id that it gets."""
    forget_history: Callable[[], Awaitable[None]]
    letters: list[bytes]


SERVERS: dict[str, Callable[[], AbstractContextManager[MailServer]]] = {
    "Dovecot": dovecot,
    "Dovecot without extensions": lambda: dovecot(capability=BARE),
    "Cyrus": cyrus,
    "pymap": pymap,
}


@pytest.fixture(params=["Gmail's stand-in", *SERVERS])
async def provider(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Provider]:
    named = [(f"Letter {number}", {"Message-ID": f"<{number}@x.example>"}) for number in range(COUNT)]
    letters = [crlf(letter(subject, headers=headers)) for subject, headers in named]
    if request.param in SERVERS:
        with SERVERS[request.param]() as server:
            async with rig_on(server, tmp_path) as rig:
                for number, raw in enumerate(letters):
                    server.deliver(raw, received=NOON + number)
                yield Provider(rig.mailbox, rig.deliver, rig.forget_history, letters)
        return
    mails = [ListedMail(raw, (NOON + number) * 1_000 + 999) for number, raw in enumerate(letters)]
    async with running_sim(ListSource(mails, email=OWNER)) as sim, client_of(sim) as client:

        async def forget_history() -> None:
            sim.control.expire_history()

        yield Provider(GmailMailbox(client), sim.control.deliver, forget_history, letters)


async def listed(mailbox: Mailbox, span: Span | None = None, **how: object) -> list[str]:
    pages = [page async for page in mailbox.list(span, **how)]  # type: ignore[arg-type]
    assert [page.is_last for page in pages] == [False] * (len(pages) - 1) + [True]
    return [each for page in pages for each in page.ids]


async def one(mailbox: Mailbox, message_id: str, detail: Detail = Detail.FLAGS) -> RemoteMessage:
    [result] = await mailbox.fetch([message_id], detail)
    assert isinstance(result, Got)
    return result.message


async def test_it_says_whose_it_is_and_how_much_it_holds(provider: Provider) -> None:
    identity = await provider.mailbox.identity()
    assert (identity.email, identity.messages_total) == (OWNER, COUNT)
    assert identity.cursor
    assert provider.mailbox.at(PriorityLane.LIVE).lane is PriorityLane.LIVE


async def test_everything_is_listed_once_whatever_the_size_of_a_page(provider: Provider) -> None:
    whole = await listed(provider.mailbox)
    assert len(set(whole)) == len(whole) == COUNT
    assert set(await listed(provider.mailbox, page_size=2)) == set(whole)


@pytest.mark.req("SY-1")
async def test_spans_that_touch_lose_no_message_at_their_edges(provider: Provider) -> None:
    cuts = [0, NOON, NOON + 1, NOON + 3, NOON + COUNT]
    spans = [Span(start, end) for start, end in zip(cuts, [*cuts[1:], None], strict=True)]
    found = [set(await listed(provider.mailbox, span)) for span in spans]
    for span, ids in zip(spans, found, strict=True):
        for message_id in await listed(provider.mailbox):
            received = (await one(provider.mailbox, message_id)).received_ms or 0
            if span.start * 1_000 <= received and (span.end is None or received < span.end * 1_000):
                assert message_id in ids
    assert set().union(*found) == set(await listed(provider.mailbox))


async def test_spam_and_trash_are_listed_unless_they_are_left_out(provider: Provider) -> None:
    spam = provider.deliver(letter("Spam"), frozenset({"SPAM"}))
    assert spam in await listed(provider.mailbox)
    assert spam not in await listed(provider.mailbox, everywhere=False)
    assert await listed(provider.mailbox, label_id="SPAM") == [spam]


@pytest.mark.req("SY-13", "IM-4")
async def test_a_label_lists_exactly_the_messages_that_have_it(provider: Provider) -> None:
    box = provider.mailbox
    work = await box.create_label("Work")
    ids = await listed(box)
    await box.modify(ids[:2], MailboxChange(add=frozenset({"STARRED", work.id})))
    await box.modify(ids[1:3], MailboxChange(add=frozenset({"UNREAD"})))
    await box.modify(ids[2:4], MailboxChange(remove=frozenset({"UNREAD"})))
    await box.modify(ids[3:4], MailboxChange(move=Move.TRASH))
    labels = {each: (await one(box, each)).label_ids for each in await listed(box)}
    assert {"INBOX", "STARRED", "UNREAD", "TRASH", work.id} <= {each for some in labels.values() for each in some}
    for label in await box.labels():
        for max_age_s in (0.0, 60.0):
            found = set(await listed(box, label_id=label.id, max_age_s=max_age_s))
            assert found == {each for each, some in labels.items() if label.id in some}, label.name


@pytest.mark.req("SY-2")
async def test_bytes_come_back_exactly_and_every_id_has_a_result_in_its_place(provider: Provider) -> None:
    ids = await listed(provider.mailbox)
    wanted = [ids[0], "ffffffffffffffff", *ids[1:], ids[0]]
    results = await provider.mailbox.fetch(wanted)
    assert [each.id for each in results] == list(dict.fromkeys(wanted))
    assert isinstance(results[1], MissingMessage)
    assert sorted(each.message.raw or b"" for each in results if isinstance(each, Got)) == sorted(provider.letters)


async def test_details_bring_no_more_than_was_asked_for(provider: Provider) -> None:
    message_id = (await listed(provider.mailbox))[0]
    headers, flags = [await one(provider.mailbox, message_id, each) for each in (Detail.HEADERS, Detail.FLAGS)]
    raw = await one(provider.mailbox, message_id, Detail.RAW)
    assert "Subject" in dict(headers.headers)
    assert [each.raw is None for each in (headers, flags, raw)] == [True, True, False]
    assert headers.received_ms == flags.received_ms == raw.received_ms


@pytest.mark.req("SY-13")
async def test_changes_since_a_cursor_tell_of_everything_that_happened(provider: Provider) -> None:
    box = provider.mailbox
    since = (await box.identity()).cursor
    old, deleted = (await listed(box))[:2]
    new = provider.deliver(letter("New"), frozenset({"INBOX"}))
    await box.modify([old], MailboxChange(add=frozenset({"STARRED"})))
    await box.modify([deleted], MailboxChange(move=Move.DELETE))
    pages = [page async for page in box.changes(since)]
    assert [each for page in pages for each in page.added] == [new]
    assert [each for page in pages for each in page.deleted] == [deleted]
    [change] = [each for page in pages for each in page.relabelled]
    assert (change.id, change.add, change.remove) == (old, frozenset({"STARRED"}), frozenset())
    assert {new, old} == {each for page in pages for each in page.wanted}
    reached = pages[-1].cursor
    assert reached is not None
    assert [page.records async for page in box.changes(reached)] == [0], "nothing is told twice"


async def test_a_cursor_that_is_too_old_is_told(provider: Provider) -> None:
    since = (await provider.mailbox.identity()).cursor
    provider.deliver(letter("New"), frozenset({"INBOX"}))
    await provider.forget_history()
    with pytest.raises(HistoryExpired):
        _ = [page async for page in provider.mailbox.changes(since)]


async def test_changes_of_labels_and_moves_can_be_repeated(provider: Provider) -> None:
    box = provider.mailbox
    ids = (await listed(box))[:3]
    for _ in range(2):
        await box.modify(ids, MailboxChange(add=frozenset({"STARRED"}), remove=frozenset({"INBOX"})))
    assert all(["STARRED" in (await one(box, each)).label_ids for each in ids])
    for _ in range(2):
        await box.modify(ids[:1], MailboxChange(move=Move.TRASH))
    assert "TRASH" in (await one(box, ids[0])).label_ids
    await box.modify(ids[:1], MailboxChange(move=Move.DELETE))
    with pytest.raises(Gone):
        await box.modify(ids[:1], MailboxChange(move=Move.TRASH))


async def test_what_is_appended_is_there_as_it_was_given(provider: Provider) -> None:
    raw = crlf(letter("Appended"))
    message_id = await provider.mailbox.append(raw, {"INBOX", "UNREAD"})
    found = await one(provider.mailbox, message_id, Detail.RAW)
    assert (found.raw, found.label_ids) == (raw, frozenset({"INBOX", "UNREAD"}))


@pytest.mark.req("IM-2", "IM-8")
async def test_messages_that_are_appended_together_each_get_their_own_id_and_labels(provider: Provider) -> None:
    label = await provider.mailbox.create_label("Together")
    chosen = [
        frozenset({"INBOX", "UNREAD"}),
        frozenset({label.id}),
        frozenset({"INBOX", label.id}),
        frozenset({"STARRED", label.id}),
    ]
    new = [NewMessage(crlf(letter(f"Together {number}")), chosen[number % 4]) for number in range(9)]
    ids = [str(each) for each in await provider.mailbox.append_all(new)]
    assert len(set(ids)) == len(new)
    for message_id, given in zip(ids, new, strict=True):
        found = await one(provider.mailbox, message_id, Detail.RAW)
        assert (found.raw, found.label_ids) == (given.raw, given.label_ids)


async def test_labels_have_names_and_an_unknown_id_has_none(provider: Provider) -> None:
    assert {"INBOX": "INBOX", "TRASH": "TRASH"}.items() <= {
        each.id: each.name for each in await provider.mailbox.labels()
    }.items()
    assert await LabelNames(provider.mailbox).names({"INBOX", "of a deleted label"}) == {"INBOX"}


async def test_comparing_finds_what_was_relabelled_and_what_is_gone(provider: Provider) -> None:
    box = provider.mailbox
    same, changed, gone = (await listed(box))[:3]
    names = LabelNames(box)
    known = {each: await names.names((await one(box, each)).label_ids) for each in (same, changed, gone)}
    await box.modify([changed], MailboxChange(add=frozenset({"STARRED"})))
    await box.modify([gone], MailboxChange(move=Move.DELETE))
    found = await compare(box, names, known)
    assert found.relabelled == {changed: known[changed] | {"STARRED"}}
    assert list(found.gone) == await gone_of(box, [same, changed, gone]) == [gone]


@pytest.mark.req("IM-8")
@pytest.mark.parametrize(
    ("problem", "begun"), [(CallRefused("too large", status=0, reason="size"), 6), (MailboxUnavailable("no"), 2)]
)
async def test_only_a_problem_of_the_whole_mailbox_keeps_messages_from_being_appended(
    problem: PostroomError, begun: int
) -> None:
    async def append(message: NewMessage) -> str:
        if message.raw == b"1":
            raise problem
        return message.raw.decode()

    found = await append_each([NewMessage(str(number).encode()) for number in range(6)], append, at_once=1)
    expected = ["0", problem, "2", "3", "4", "5"]
    assert found == [*expected[:begun], *[None] * (6 - begun)]
