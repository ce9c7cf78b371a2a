"""A million messages are served without a million objects."""

from __future__ import annotations

import tracemalloc

import httpx2

from postroom.sim.gmail.server import running_sim
from tests.support.gmail_sim import MINUTE_MS, EndlessSource, api_client
from tests.support.mail import START_MS

COUNT = 1_000_000


async def pages(api: httpx2.AsyncClient, query: str, most: int) -> list[str]:
    found: list[str] = []
    params = {"maxResults": "500", "q": query}
    for _ in range(most):
        answer = (await api.get("messages", params=params)).json()
        found += [each["id"] for each in answer.get("messages", [])]
        if "nextPageToken" not in answer:
            break
        params["pageToken"] = answer["nextPageToken"]
    return found


async def test_listing_looks_at_what_it_lists_and_little_more() -> None:
    source = EndlessSource(COUNT)
    async with running_sim(source) as sim, api_client(sim.url, sim.token) as api:
        assert len(set(await pages(api, "", 10))) == 5000
        assert source.summaries_made < 5300
        assert source.raws_written == 0


async def test_a_day_is_found_by_its_dates_without_looking_at_the_rest() -> None:
    source = EndlessSource(COUNT)
    start = START_MS // 1000 + 400 * 86_400
    async with running_sim(source) as sim, api_client(sim.url, sim.token) as api:
        found = await pages(api, f"after:{start} before:{start + 86_400} from:ann", 10)
        wanted = {source.summary(400 * 1440 + minute).id for minute in range(1440)}
        assert set(found) == wanted
        assert len(found) == 1440
        assert source.summaries_made < 2 * 1440 + 100
        assert source.raws_written == 0


async def test_the_oldest_mail_is_as_near_as_the_newest() -> None:
    source = EndlessSource(COUNT)
    async with running_sim(source) as sim, api_client(sim.url, sim.token) as api:
        end = (START_MS + 20 * MINUTE_MS) // 1000
        assert len(await pages(api, f"before:{end}", 2)) == 20
        assert source.summaries_made < 50


async def test_a_search_for_a_rare_word_comes_in_short_pages() -> None:
    source = EndlessSource(60_000)
    async with running_sim(source) as sim, api_client(sim.url, sim.token) as api:
        first = (await api.get("messages", params={"q": "subject:number100"})).json()
        assert "messages" not in first
        assert source.summaries_made <= 10_001
        assert len(await pages(api, "subject:number100", 7)) == 1
        await pages(api, "neverwritten", 1)
        assert source.raws_written < 1_000


async def test_the_counts_of_a_label_are_exact_or_close_and_quick() -> None:
    for count, looked_at in ((3_000, 3_000), (COUNT, 5_000)):
        source = EndlessSource(count)
        async with running_sim(source) as sim, api_client(sim.url, sim.token) as api:
            sim.control.deliver(b"Subject: one more", frozenset({"INBOX", "UNREAD"}))
            counts = (await api.get("labels/INBOX")).json()
        assert (counts["messagesTotal"], counts["threadsTotal"]) == (count + 1, count + 1)
        assert (counts["messagesUnread"], counts["threadsUnread"]) == (1, 1)
        assert source.summaries_made == looked_at


async def test_memory_grows_with_what_was_changed_and_not_with_the_mailbox() -> None:
    source = EndlessSource(COUNT)
    tracemalloc.start()
    try:
        async with running_sim(source) as sim, api_client(sim.url, sim.token) as api:
            ids = await pages(api, "", 4)
            for message_id in ids[:50]:
                assert (await api.get(f"messages/{message_id}")).status_code == 200
            await api.post("messages/batchModify", json={"ids": ids[:1000], "addLabelIds": ["STARRED"]})
            _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20_000_000
