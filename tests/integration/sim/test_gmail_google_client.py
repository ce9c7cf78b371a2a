"""Google's own client drives the stand-in through every method; each answer is held against the discovery document."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from email import message_from_bytes
from io import BytesIO
from typing import Any

import pytest
from googleapiclient.http import MediaIoBaseUpload  # type: ignore[import-untyped]

from postroom.sim.gmail.control import SimState
from postroom.sim.gmail.gateway import ROUTES
from postroom.sim.gmail.server import running_sim
from postroom.sim.gmail.sources import ListedMail, ListSource, MailboxSource
from tests.support import google_client
from tests.support.google_client import HttpError, google_service
from tests.support.mail import HOUR_MS, OWNER, START_MS, encoded, letter, mailbox

Scene = Callable[[Any], None]


async def play(source: MailboxSource, *scenes: Scene) -> SimState:
    """Run scenes against a fresh stand-in; the answer is what it says of itself afterwards."""
    async with running_sim(source) as sim:
        service = google_service(sim.url, sim.token)
        try:
            for scene in scenes:
                await asyncio.to_thread(scene, service.users())
        finally:
            service.close()
        return sim.control.state()


def read_everything(users: Any) -> None:
    profile = users.getProfile(userId="me").execute()
    assert profile["emailAddress"] == OWNER
    assert profile["messagesTotal"] == 30
    ids: list[str] = []
    request = users.messages().list(userId="me", maxResults=7)
    while request is not None:
        answer = request.execute()
        ids += [message["id"] for message in answer["messages"]]
        request = users.messages().list_next(request, answer)
    assert len(ids) == len(set(ids)) == 30
    for form in ("full", "metadata", "minimal", "raw"):
        message = users.messages().get(userId="me", id=ids[0], format=form).execute()
        assert message["id"] == ids[0]
        assert ("raw" in message) is (form == "raw")
        assert ("payload" in message) is (form in ("full", "metadata"))
    only = users.messages().get(userId="me", id=ids[0], format="metadata", metadataHeaders=["subject"]).execute()
    assert [header["name"] for header in only["payload"]["headers"]] == ["Subject"]


def read_threads(users: Any) -> None:
    threads = users.threads().list(userId="me", maxResults=3).execute()["threads"]
    thread = users.threads().get(userId="me", id=threads[0]["id"]).execute()
    assert thread["messages"][0]["threadId"] == threads[0]["id"]
    users.threads().modify(userId="me", id=thread["id"], body={"addLabelIds": ["STARRED"]}).execute()
    users.threads().trash(userId="me", id=thread["id"]).execute()
    assert "TRASH" in users.messages().get(userId="me", id=thread["id"]).execute()["labelIds"]
    users.threads().untrash(userId="me", id=thread["id"]).execute()
    users.threads().delete(userId="me", id=thread["id"]).execute()
    with pytest.raises(HttpError, match="404"):
        users.threads().get(userId="me", id=thread["id"]).execute()


def keep_labels(users: Any) -> None:
    label = users.labels().create(userId="me", body={"name": "Bills", "labelListVisibility": "labelHide"}).execute()
    users.labels().patch(userId="me", id=label["id"], body={"name": "Invoices"}).execute()
    users.labels().update(
        userId="me", id=label["id"], body={"id": label["id"], "name": "Paid", "messageListVisibility": "hide"}
    ).execute()
    message = users.messages().list(userId="me", maxResults=1).execute()["messages"][0]["id"]
    users.messages().modify(userId="me", id=message, body={"addLabelIds": [label["id"]]}).execute()
    seen = users.labels().get(userId="me", id=label["id"]).execute()
    assert (seen["name"], seen["messagesTotal"], seen["threadsTotal"]) == ("Paid", 1, 1)
    users.labels().delete(userId="me", id=label["id"]).execute()
    assert "Paid" not in [each["name"] for each in users.labels().list(userId="me").execute()["labels"]]
    assert label["id"] not in users.messages().get(userId="me", id=message).execute()["labelIds"]


def change_messages(users: Any) -> None:
    ids = [each["id"] for each in users.messages().list(userId="me", maxResults=6).execute()["messages"]]
    users.messages().batchModify(userId="me", body={"ids": ids[:3], "addLabelIds": ["IMPORTANT"]}).execute()
    assert "IMPORTANT" in users.messages().get(userId="me", id=ids[2], format="minimal").execute()["labelIds"]
    users.messages().trash(userId="me", id=ids[0]).execute()
    assert users.messages().list(userId="me", q="in:trash").execute()["messages"][0]["id"] == ids[0]
    users.messages().untrash(userId="me", id=ids[0]).execute()
    users.messages().delete(userId="me", id=ids[0]).execute()
    users.messages().batchDelete(userId="me", body={"ids": ids[1:3]}).execute()
    left = [each["id"] for each in users.messages().list(userId="me").execute()["messages"]]
    assert not set(ids[:3]) & set(left)


def add_messages(users: Any) -> None:
    raw = letter("Inserted", headers={"Date": "Mon, 06 Jan 2020 10:00:00 +0000"})
    kept = users.messages().insert(userId="me", body={"raw": encoded(raw), "labelIds": ["INBOX"]}).execute()
    back = users.messages().get(userId="me", id=kept["id"], format="raw").execute()
    assert base64.urlsafe_b64decode(back["raw"]) == raw
    brought = users.messages().import_(userId="me", body={"raw": encoded(raw)}).execute()
    assert users.messages().get(userId="me", id=brought["id"]).execute()["internalDate"] == "1578304800000"
    media = MediaIoBaseUpload(BytesIO(raw), "message/rfc822")
    loaded = users.messages().insert(userId="me", media_body=media, body={"labelIds": ["STARRED"]}).execute()
    back = users.messages().get(userId="me", id=loaded["id"], format="raw").execute()
    assert base64.urlsafe_b64decode(back["raw"]) == raw
    assert back["labelIds"] == ["STARRED"]


def send_messages(users: Any) -> None:
    raw = letter("Out", to="bob@friends.example", headers={"Message-ID": "<mine@x.example>", "X-Mine": "stays"})
    sent = users.messages().send(userId="me", body={"raw": encoded(raw)}).execute()
    assert sent["labelIds"] == ["SENT"]
    back = users.messages().get(userId="me", id=sent["id"], format="raw").execute()
    out = message_from_bytes(base64.urlsafe_b64decode(back["raw"]))
    assert out["Message-ID"] != "<mine@x.example>"
    assert out["X-Mine"] == "stays"
    assert out.get_all("Message-ID") == [out["Message-ID"]]


def write_drafts(users: Any) -> None:
    raw = letter("Draft", to="bob@friends.example", headers={"Message-ID": "<mine@x.example>", "X-Mine": "stays"})
    draft = users.drafts().create(userId="me", body={"message": {"raw": encoded(raw)}}).execute()
    again = users.drafts().update(userId="me", id=draft["id"], body={"message": {"raw": encoded(raw)}}).execute()
    assert again["id"] == draft["id"]
    assert again["message"]["id"] != draft["message"]["id"]
    assert users.drafts().get(userId="me", id=draft["id"]).execute()["message"]["labelIds"] == ["DRAFT"]
    assert [each["id"] for each in users.drafts().list(userId="me").execute()["drafts"]] == [draft["id"]]
    sent = users.drafts().send(userId="me", body={"id": draft["id"]}).execute()
    assert sent["threadId"] == again["message"]["threadId"]
    assert "drafts" not in users.drafts().list(userId="me").execute()
    headers = users.messages().get(userId="me", id=sent["id"]).execute()["payload"]["headers"]
    seen = {header["name"]: header["value"] for header in headers}
    assert seen["Message-ID"] != "<mine@x.example>"
    assert seen["X-Mine"] == "stays"
    with pytest.raises(HttpError, match="404"):
        users.drafts().send(userId="me", body={"id": draft["id"]}).execute()
    other = users.drafts().create(userId="me", body={"message": {"raw": encoded(raw)}}).execute()
    users.drafts().delete(userId="me", id=other["id"]).execute()


def follow_history(users: Any) -> None:
    start = users.getProfile(userId="me").execute()["historyId"]
    raw = letter("News")
    added = users.messages().insert(userId="me", body={"raw": encoded(raw), "labelIds": ["INBOX"]}).execute()["id"]
    users.messages().modify(
        userId="me", id=added, body={"addLabelIds": ["STARRED"], "removeLabelIds": ["INBOX"]}
    ).execute()
    users.messages().delete(userId="me", id=added).execute()
    records: list[Any] = []
    request = users.history().list(userId="me", startHistoryId=start, maxResults=1)
    while request is not None:
        answer = request.execute()
        records += answer.get("history", [])
        request = users.history().list_next(request, answer)
    kinds = [next(key for key in record if key not in ("id", "messages")) for record in records]
    assert kinds == ["messagesAdded", "labelsAdded", "labelsRemoved", "messagesDeleted"]
    assert [int(record["id"]) for record in records] == sorted(int(record["id"]) for record in records)
    watch = users.watch(userId="me", body={"topicName": "projects/p/topics/t", "labelIds": ["INBOX"]}).execute()
    assert int(watch["expiration"]) > START_MS
    users.stop(userId="me").execute()


async def test_googles_client_can_call_every_method() -> None:
    state = await play(
        mailbox(30),
        read_everything,
        read_threads,
        keep_labels,
        change_messages,
        add_messages,
        send_messages,
        write_drafts,
        follow_history,
        fetch_an_attachment,
    )
    assert set(state.calls) == {route.name for route in ROUTES}


def fetch_an_attachment(users: Any) -> None:
    raw = letter("With a file", attachment=("report.pdf", b"%PDF-1.7 not really"))
    kept = users.messages().insert(userId="me", body={"raw": encoded(raw)}).execute()
    payload = users.messages().get(userId="me", id=kept["id"]).execute()["payload"]
    part = next(part for part in payload["parts"] if part["filename"] == "report.pdf")
    got = (
        users.messages().attachments().get(userId="me", messageId=kept["id"], id=part["body"]["attachmentId"]).execute()
    )
    assert base64.urlsafe_b64decode(got["data"]) == b"%PDF-1.7 not really"
    assert got["size"] == part["body"]["size"]


async def test_googles_client_can_batch() -> None:
    async with running_sim(mailbox(30)) as sim:
        service = google_service(sim.url, sim.token)
        answers: dict[str, Any] = {}
        failures: dict[str, Any] = {}

        def collect(name: str, answer: Any, error: Any) -> None:
            (answers if error is None else failures)[name] = answer if error is None else error

        def run() -> None:
            users = service.users()
            ids = [each["id"] for each in users.messages().list(userId="me").execute()["messages"]]
            batch = service.new_batch_http_request(callback=collect)
            for message_id in ids[:20]:
                batch.add(users.messages().get(userId="me", id=message_id), request_id=message_id)
            batch.add(users.messages().get(userId="me", id="00000000000000ff"), request_id="missing")
            batch.add(
                users.messages().modify(userId="me", id=ids[0], body={"addLabelIds": ["STARRED"]}), request_id="star"
            )
            batch.add(users.messages().delete(userId="me", id=ids[29]), request_id="delete")
            batch.execute()

        await asyncio.to_thread(run)
        service.close()
        assert len(answers) == 22
        assert all(name == answer["id"] for name, answer in answers.items() if name not in ("star", "delete"))
        for name, answer in answers.items():
            if name != "delete":
                google_client.check("Message", answer)
        assert failures["missing"].resp.status == 404
        state = sim.control.state()
        assert (state.batches, state.messages) == (1, 29)


def test_each_method_asks_for_the_scopes_of_the_discovery_document() -> None:
    described = {method.name: method.scopes for method in google_client.methods()}
    for route in ROUTES:
        addons = {scope for scope in described[route.name] if ".addons." in scope}
        assert route.scopes == described[route.name] - addons, route.name


async def test_charsets_and_broken_mail_still_validate() -> None:
    ugly = [
        b"",
        b"no headers at all",
        b"Subject: \xff\xfe raw bytes\r\nFrom: =?x-unknown?Q?b=E9?= <a@b>\r\n\r\n\xe9\xe8",
        b"Subject: =?utf-8?B?4pyT?= ok\nContent-Type: text/html; charset=nonsense\n\n<p>caf\xe9</p>",
        b"Content-Type: multipart/mixed; boundary=x\n\n--x\nContent-Type: multipart/mixed; boundary=y\n\n--y\n\nin\n",
        b"Content-Type: multipart/mixed\n\nno boundary",
        b"Content-Type: text/plain\nContent-Transfer-Encoding: base64\n\n!!!notbase64",
        b"Content-Type: application/pdf; name*=utf-8''%e2%82%ac.pdf\nContent-Disposition: attachment\n\nx",
    ]
    mails = [ListedMail(raw, START_MS + number * HOUR_MS) for number, raw in enumerate(ugly)]

    def read(users: Any) -> None:
        found = users.messages().list(userId="me").execute()["messages"]
        assert len(found) == len(ugly)
        for each in found:
            for form in ("full", "metadata", "raw"):
                users.messages().get(userId="me", id=each["id"], format=form).execute()

    await play(ListSource(mails), read)
