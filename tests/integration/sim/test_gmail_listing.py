"""Lists and searches over the API: what is in, what is left out, and pages of threads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import httpx2
import pytest

from postroom.sim.gmail.server import running_sim
from postroom.sim.gmail.sources import ListedMail, ListSource
from tests.support import google_client
from tests.support.gmail_sim import api_client
from tests.support.mail import HOUR_MS, START_MS, letter

WORDS = ("inbox", "archived", "spam", "trash", "bill", "draft")
LABELS: Mapping[str, frozenset[str]] = {
    "inbox": frozenset({"INBOX", "UNREAD"}),
    "archived": frozenset(),
    "spam": frozenset({"SPAM"}),
    "trash": frozenset({"TRASH"}),
    "bill": frozenset({"INBOX", "Label_7"}),
    "draft": frozenset({"DRAFT"}),
}


def source() -> ListSource:
    mails = [
        ListedMail(letter(f"About {word}", f"Body of {word}\n"), START_MS + number * HOUR_MS, LABELS[word])
        for number, word in enumerate(WORDS)
    ]
    return ListSource(mails, labels={"Label_7": "My Bills/2024"})


@pytest.fixture
async def api() -> AsyncIterator[httpx2.AsyncClient]:
    async with running_sim(source()) as sim, api_client(sim.url, sim.token) as client:
        yield client


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({}, {"inbox", "archived", "bill", "draft"}),
        ({"includeSpamTrash": "true"}, set(WORDS)),
        ({"q": "in:anywhere"}, set(WORDS)),
        ({"q": "in:spam"}, {"spam"}),
        ({"q": "in:trash OR in:spam"}, {"spam", "trash"}),
        ({"labelIds": "TRASH"}, {"trash"}),
        ({"labelIds": ["INBOX", "UNREAD"]}, {"inbox"}),
        ({"q": "label:my-bills-2024"}, {"bill"}),
        ({"q": 'label:"My Bills/2024"'}, {"bill"}),
        ({"q": "label:Label_7"}, {"bill"}),
        ({"q": "in:draft"}, {"draft"}),
        ({"q": "body -in:inbox"}, {"archived", "draft"}),
        ({"q": "has:userlabels"}, {"bill"}),
        ({"q": '"body of bill"'}, {"bill"}),
        ({"q": f"after:{START_MS // 1000 + 3600} before:{START_MS // 1000 + 4 * 3600}"}, {"archived"}),
        ({"q": "label:nothing"}, set()),
    ],
)
async def test_a_list_holds_what_was_asked_for(
    api: httpx2.AsyncClient, params: Mapping[str, str | list[str]], words: set[str]
) -> None:
    answer = (await api.get("messages", params=params)).json()
    shown = [(await api.get(f"messages/{each['id']}")).json() for each in answer.get("messages", [])]
    assert {each["snippet"].removeprefix("Body of ") for each in shown} == words
    google_client.check("ListMessagesResponse", answer)


async def test_mail_without_labels_has_no_list_of_them(api: httpx2.AsyncClient) -> None:
    found = (await api.get("messages", params={"q": "subject:archived"})).json()["messages"]
    assert "labelIds" not in (await api.get(f"messages/{found[0]['id']}")).json()


async def test_threads_are_listed_once_over_all_pages() -> None:
    thread = "1900000000000000"
    mails = [
        ListedMail(letter(f"Part {number}"), START_MS + number * HOUR_MS, thread_id=thread if number % 3 == 0 else None)
        for number in range(40)
    ]
    async with running_sim(ListSource(mails)) as sim, api_client(sim.url, sim.token) as api:
        found: list[str] = []
        params = {"maxResults": "4"}
        while True:
            answer = (await api.get("threads", params=params)).json()
            google_client.check("ListThreadsResponse", answer)
            found += [each["id"] for each in answer["threads"]]
            if "nextPageToken" not in answer:
                break
            params["pageToken"] = answer["nextPageToken"]
        assert len(found) == len(set(found)) == 27
        assert len((await api.get(f"threads/{thread}")).json()["messages"]) == 14
        searched = (await api.get("threads", params={"q": "subject:3"})).json()["threads"]
        assert [each["id"] for each in searched] == [thread]


async def test_drafts_come_in_pages() -> None:
    async with running_sim(ListSource()) as sim, api_client(sim.url, sim.token) as api:
        made = [
            (await api.post("drafts", json={"message": {"raw": "U3ViamVjdDogeA0KDQo"}})).json()["id"] for _ in range(5)
        ]
        first = (await api.get("drafts", params={"maxResults": 3})).json()
        rest = (await api.get("drafts", params={"maxResults": 3, "pageToken": first["nextPageToken"]})).json()
        assert [each["id"] for each in first["drafts"] + rest["drafts"]] == made[::-1]
        assert "nextPageToken" not in rest
        assert (await api.get("drafts", params={"pageToken": "x"})).status_code == 400
