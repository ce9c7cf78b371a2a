"""Google's own client and ours go through the same scenario, each on a fresh stand-in: same answers, same mailbox."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from postroom.domain.clock import ManualClock
from postroom.sim.gmail.control import SimState
from postroom.sim.gmail.server import running_sim
from tests.support.gmail_sim import client_of
from tests.support.google_client import google_service
from tests.support.mail import letter, mailbox
from tests.support.mailbox_drivers import GoogleDriver, MailDriver, NotTaken, NotThere, PostroomDriver

WITH_A_FILE = letter("In", headers={"Date": "Mon, 06 Jan 2020 10:00:00 +0000"}, attachment=("a.pdf", b"%PDF\x00\xff"))
Truth = list[dict[str, object]]


async def fails(act: Awaitable[object]) -> str:
    try:
        await act
    except (NotThere, NotTaken) as error:
        return type(error).__name__
    raise AssertionError("this was to fail")


async def read(box: MailDriver) -> list[object]:
    pages = await box.pages("", 7)
    ids = [each for page in pages for each in page]
    forms = [await box.get(ids[0], form, []) for form in ("raw", "metadata", "minimal")]
    return [
        await box.profile(),
        pages,
        await box.pages("subject:number3 OR subject:number5", 500),
        await box.pages("subject:nothing-like-it", 500),
        forms,
        await box.get(ids[1], "metadata", ["Subject", "From"]),
        await box.get_many([*ids, "00000000000000ff"]),
        await box.thread(forms[0].thread_id),
        await fails(box.get("00000000000000ff", "raw", [])),
        await fails(box.get("not an id", "raw", [])),
        await fails(box.thread("00000000000000ff")),
    ]


async def change(box: MailDriver) -> list[object]:
    ids = (await box.pages("", 10))[0]
    label_id, name, is_system = await box.create_label("Bills/Größe")
    told: list[object] = [(name, is_system), await box.modify(ids[0], [label_id, "STARRED"], ["INBOX"])]
    await box.modify_many(ids[1:4], ["IMPORTANT"], [])
    told += [await box.get(ids[2], "minimal", []), await box.labels()]
    told += [await box.trash(ids[4]), await box.pages("in:trash", 500)]
    told.append(await box.untrash(ids[4]))
    await box.delete(ids[5])
    await box.delete_many(ids[6:8])
    return [*told, await fails(box.delete(ids[5])), await fails(box.modify(ids[0], ["SENT"], []))]


async def write(box: MailDriver) -> list[object]:
    kept = await box.insert(WITH_A_FILE, ["INBOX"])
    draft_id, draft = await box.create_draft(letter("Later", to="bob@friends.example", headers={"X-Mine": "stays"}))
    other_id, _ = await box.create_draft(letter("Never", to="bob@friends.example"))
    await box.delete_draft(other_id)
    return [
        (kept, draft),
        await box.get(kept.id, "raw", []),
        sent := await box.send_draft(draft_id),
        await box.get(sent.id, "raw", []),
        await fails(box.send_draft(draft_id)),
        await box.pages("in:drafts", 500),
    ]


async def follow(box: MailDriver) -> list[object]:
    since = (await box.profile())[2]
    added = await box.insert(letter("News"), ["INBOX"])
    await box.modify(added.id, ["STARRED"], ["INBOX"])
    await box.delete(added.id)
    return [await box.history(since), await fails(box.history("1"))]


SCENES: list[Callable[[MailDriver], Awaitable[list[object]]]] = [read, change, write, follow]


async def play_with_google() -> tuple[list[list[object]], Truth, SimState]:
    async with running_sim(mailbox(30), clock=ManualClock()) as sim:
        service = google_service(sim.url, sim.token)
        told = [await scene(GoogleDriver(service)) for scene in SCENES]
        service.close()
        return told, list(sim.control.truth()), sim.control.state()


async def play_with_ours() -> tuple[list[list[object]], Truth, SimState]:
    async with running_sim(mailbox(30), clock=ManualClock()) as sim, client_of(sim) as client:
        told = [await scene(PostroomDriver(client)) for scene in SCENES]
        return told, list(sim.control.truth()), sim.control.state()


@pytest.mark.req("JB-7")
async def test_our_client_gets_the_same_answers_as_googles_and_leaves_the_same_mailbox() -> None:
    (theirs, their_truth, their_state), (ours, our_truth, our_state) = await play_with_google(), await play_with_ours()
    for their_scene, our_scene in zip(theirs, ours, strict=True):
        for their_answer, our_answer in zip(their_scene, our_scene, strict=True):
            assert our_answer == their_answer
    assert our_truth == their_truth
    assert set(our_state.calls) == set(their_state.calls)
