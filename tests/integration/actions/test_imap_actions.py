"""Actions on an IMAP mailbox do what they do on Gmail, and an undo takes exactly that back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from postroom.actions.label_changes import apply, change_for, hint_for, inverse_of, labels_now, undoing
from postroom.domain.actions import ActionType
from postroom.domain.errors import PostroomError
from postroom.mailboxes.errors import CallRefused, MailboxUnavailable
from postroom.mailboxes.imap.reading import BytesReader
from postroom.mailboxes.protocol import MailboxChange, Move
from tests.support.imap import BARE, ImapRig, crlf, imap_rig
from tests.support.mail import letter

RAW = crlf(letter("An offer", headers={"Message-ID": "<1@x.example>"}))


@pytest.fixture(params=["", BARE], ids=["all extensions", "none"])
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ImapRig]:
    async with imap_rig(tmp_path, capability=request.param) as made:
        yield made


async def place_count(rig: ImapRig, message_id: str) -> int:
    return len(await rig.session.store.places_of([message_id]))


@pytest.mark.req("IM-5")
async def test_every_action_and_its_undo(rig: ImapRig) -> None:
    message_id = rig.deliver(RAW)
    box = rig.mailbox
    label = (await box.create_label("Orders/2026")).id
    before = await labels_now(box, message_id)
    assert before == {"INBOX", "UNREAD"}
    expected = {
        ActionType.ARCHIVE: {"UNREAD"},
        ActionType.APPLY_LABEL: {"INBOX", "UNREAD", label},
        ActionType.MARK_READ: {"INBOX"},
        ActionType.STAR: {"INBOX", "UNREAD", "STARRED"},
        ActionType.TRASH: {"TRASH", "UNREAD"},
    }
    for action, labels in expected.items():
        change = change_for(action, before, label)
        after = await apply(box, message_id, change, before)
        assert after == labels == await labels_now(box, message_id), action
        inverse = inverse_of(hint_for(action, before, after, change, label))
        await apply(box, message_id, undoing(inverse, before, after), after)
        assert await labels_now(box, message_id) == before, action
        assert await place_count(rig, message_id) == 1, action
    assert (await box.get(message_id)).raw == RAW


@pytest.mark.req("IM-5")
async def test_mail_in_several_folders_comes_back_from_the_trash_to_all_of_them(rig: ImapRig) -> None:
    message_id = rig.deliver(RAW)
    box = rig.mailbox
    label = (await box.create_label("Orders")).id
    before = (await box.modify([message_id], MailboxChange(add=frozenset({label}))))[message_id]
    assert before == {"INBOX", "UNREAD", label}
    change = change_for(ActionType.TRASH, before)
    after = await apply(box, message_id, change, before)
    assert after == {"TRASH", "UNREAD"}
    assert await place_count(rig, message_id) == 1
    inverse = inverse_of(hint_for(ActionType.TRASH, before, after, change))
    assert await apply(box, message_id, undoing(inverse, before, after), after) == before


@pytest.mark.req("IM-3")
async def test_a_move_reports_labels_and_neither_a_deletion_nor_new_mail(rig: ImapRig) -> None:
    message_id = rig.deliver(RAW)
    box = rig.mailbox
    _ = [page async for page in box.list()]
    since = (await box.identity()).cursor
    await box.modify([message_id], MailboxChange(move=Move.TRASH))
    await box.modify([message_id], MailboxChange(move=Move.RESTORE))
    pages = [page async for page in box.changes(since)]
    assert [(page.added, page.deleted) for page in pages] == [((), ())]
    [change] = pages[0].relabelled
    assert (change.add, change.remove) == (frozenset(), frozenset({"INBOX"}))
    assert change.now == frozenset({"UNREAD"})


@pytest.mark.req("IM-3")
async def test_what_was_matched_without_its_bytes_is_read_before_it_is_deleted(rig: ImapRig) -> None:
    message_id = rig.deliver(RAW)
    box = rig.mailbox
    await box.modify([message_id], MailboxChange(move=Move.TRASH))
    [place] = await rig.session.store.places_of([message_id])
    assert place.is_provisional, "the server said where it went, and nobody has looked"
    await box.modify([message_id], MailboxChange(add=frozenset({"STARRED"})))
    [place] = await rig.session.store.places_of([message_id])
    assert not place.is_provisional
    await box.modify([message_id], MailboxChange(move=Move.DELETE))
    assert await place_count(rig, message_id) == 0


@pytest.mark.req("IM-5")
async def test_a_query_finds_what_it_asks_for_and_never_less(rig: ImapRig) -> None:
    invoice = crlf(letter("Rechnung für Mai", sender="Shop <shop@x.example>"))
    rig.deliver(RAW)
    sent, bill = rig.deliver(letter("Sent"), frozenset({"SENT"})), rig.deliver(invoice)
    spam = rig.deliver(letter("Win"), frozenset({"SPAM"}))
    box = rig.mailbox

    async def found(query: str) -> set[str]:
        return {each async for page in box.list(query=query, everywhere=False) for each in page.ids}

    everything = await found("in:anywhere")
    assert {sent, bill, spam} < everything
    for _ in range(2):  # before and after their bytes were read
        assert await found("from:shop@x.example") == {bill}
        assert await found('subject:"An offer" OR in:sent') == everything - {bill, spam}
        assert await found("-in:sent") == everything - {sent, spam}
        assert await found("-subject:rech") >= {bill}, "servers find parts of words, which the query does not mean"
        assert await found("larger:10M") == set()
    assert await found("has:attachment in:inbox") == everything - {sent, spam}, "what cannot be said counts as found"


@pytest.mark.req("IM-3")
async def test_what_cannot_be_read_again_is_not_deleted(rig: ImapRig, monkeypatch: pytest.MonkeyPatch) -> None:
    message_id = rig.deliver(RAW)
    box = rig.mailbox
    await box.modify([message_id], MailboxChange(move=Move.TRASH))

    async def failing(*asked: object) -> dict[int, PostroomError]:
        [place] = await rig.session.store.places_of([message_id])
        return {place.uid: CallRefused("cannot be read", status=0, reason="no")}

    with monkeypatch.context() as broken:
        broken.setattr(BytesReader, "_read", failing)
        with pytest.raises(MailboxUnavailable, match="nothing was changed"):
            await box.modify([message_id], MailboxChange(move=Move.DELETE))
    assert await labels_now(box, message_id) == {"TRASH", "UNREAD"}
