"""The Mail page and its API: searching, reading, downloading, and what became of a message."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from importlib.resources import files

import pytest

from postroom.app.archive_runner import conversations_handler
from postroom.archive.messages import IncomingMail, Provenance
from postroom.domain.jobs import ARCHIVE_CONVERSATIONS, CATALOGUE
from postroom.domain.roles import Role
from postroom.mail.query.grammar import OPERATORS
from postroom.queue import JobQueue, NewJob
from tests.support.dashboard_data import add_decided_mail, archive_mail
from tests.support.dashboards import Site, text_of
from tests.support.mail import ME
from tests.support.queues import run_until_idle
from tests.support.reading_faults import break_reading

BEGINNING = datetime(2026, 1, 1, 12, tzinfo=UTC)
TWO_PARTS = (
    "Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\nContent-Type: text/html\r\n\r\n"
    '<p>Dear <b>you</b>, <img src="http://t.example/p.gif"> see <a href="https://x.example/">here</a></p>\r\n'
    '--b\r\nContent-Type: text/html\r\nContent-Disposition: attachment; filename="page.html"\r\n\r\n'
    "<script>1</script>\r\n--b--\r\n"
)


def mail(
    number: int, body: str = "\r\nHello", *, sender: str = "Ann <ann@example.org>", **more: object
) -> IncomingMail:
    """Each an hour after the one before, and a conversation of its own unless told otherwise."""
    head = f"From: {sender}\r\nTo: {ME}\r\nSubject: Letter {number}\r\nMessage-ID: <{number}@example.org>\r\n"
    given = {"thread_id": f"t{number}", "labels": frozenset({"INBOX", "work"}), **more}
    received = BEGINNING + timedelta(hours=number)
    return IncomingMail((head + body).encode(), Provenance.API, f"18f{number:013}", received=received, **given)  # type: ignore[arg-type]


async def test_an_empty_archive_says_what_to_do(site: Site) -> None:
    said = text_of((await site.get("/mail")).text)
    assert "The archive is empty" in said
    assert "postroom sync run" in said


async def test_the_list_shows_sender_subject_labels_attachment_and_tier_newest_first(site: Site) -> None:
    keys = await archive_mail(site, [mail(1), mail(2, TWO_PARTS, sender='"boss@bank.example" <eve@example.org>')])
    await add_decided_mail(site, keys[1])
    page = (await site.get("/mail")).text
    said = text_of(page)
    assert said.index("Letter 2") < said.index("Letter 1")
    assert "boss@bank.example &lt; eve@example.org &gt;" in said
    assert "High priority" in said
    assert "work" in said
    assert page.count('alt="has attachments"') == 1
    row = (await site.api("GET", "/mail")).json()["items"][0]
    assert (row["tier"], row["has_attachment"], row["labels"]) == ("high_priority", True, ["INBOX", "work"])
    assert row["sender"] == {"name": "boss@bank.example", "address": "eve@example.org"}


async def test_every_message_is_on_exactly_one_page(site: Site) -> None:
    await archive_mail(site, [mail(number) for number in range(120)])
    seen, after = list[str](), ""
    while True:
        answer = (await site.api("GET", f"/mail?limit=50&after={after}" if after else "/mail?limit=50")).json()
        seen += [row["key"] for row in answer["items"]]
        if answer["next"] is None:
            break
        after = answer["next"]
    assert seen == sorted(seen, reverse=True)
    assert len(set(seen)) == 120
    first = await site.get("/mail", params={"query": "from:ann letter"})
    assert "query=from%3Aann+letter&amp;after=" in first.text
    second = await site.get("/mail", params={"query": "from:ann letter", "after": after})
    assert "First page" in second.text


async def test_a_search_finds_marks_and_can_be_widened(site: Site) -> None:
    await archive_mail(
        site, [mail(1, "\r\nthe quarterly invoice is here"), mail(2), mail(3, labels=frozenset({"SPAM"}))]
    )
    found = (await site.get("/mail", params={"query": "invoice"})).text
    assert "<mark><bdi>invoice</bdi></mark>" in found
    assert "1 message matches." in found
    assert (await site.api("GET", "/mail/count?query=letter")).json() == {"count": {"number": 2, "is_more": False}}
    assert "Letter 2" not in found
    nothing = await site.get("/mail", params={"query": "subject:3"})
    assert "No mail matches" in nothing.text
    assert "query=in%3Aanywhere+subject%3A3" in nothing.text
    assert "Letter 3" in (await site.get("/mail", params={"query": "in:anywhere subject:3"})).text


@pytest.mark.parametrize(("query", "marked"), [("a (b", "&nbsp;"), ("nonsense:x", "n"), ("after:tomorrowish", "t")])
async def test_a_mistake_in_a_query_is_pointed_at(site: Site, query: str, marked: str) -> None:
    page = await site.get("/mail", params={"query": query})
    assert page.status_code == 422
    assert f"<mark>{marked}</mark>" in page.text.replace("<bdi>", "").replace("</bdi>", "")
    assert "at column" in page.text
    assert 'aria-invalid="true"' in page.text
    refused = (await site.api("GET", "/mail?query=" + query)).json()["error"]
    assert (refused["kind"], refused["field"]) == ("bad_input", "query")


@pytest.mark.req("FD-6")
async def test_a_search_that_finds_nothing_leads_to_the_word_that_is_there(site: Site) -> None:
    await archive_mail(site, [mail(number, "\r\nThe invoice, 会議の資料") for number in range(3)])
    page = (await site.get("/mail", params={"query": "invoise -lunch"})).text
    assert '<a href="/mail?query=invoice+-lunch"><bdi>invoice -lunch</bdi></a>' in page
    assert "Did you mean" not in (await site.get("/mail", params={"query": "invoice"})).text
    assert "<mark><bdi>資料</bdi></mark>" in (await site.get("/mail", params={"query": "資料"})).text


@pytest.mark.req("UX-1")
def test_every_operator_is_completed() -> None:
    script = files("postroom.dashboard").joinpath("static", "completion.js").read_text(encoding="utf-8")
    listed = re.search(r"OPERATORS = \[(.*?)\]", script, re.DOTALL)
    assert listed is not None
    assert set(re.findall(r'"(\w+)"', listed[1])) == set(OPERATORS)


async def test_one_mailbox_or_all(site: Site) -> None:
    await archive_mail(site, [mail(1)])
    await archive_mail(site, [mail(2)], "other@example.org")
    both = (await site.get("/mail")).text
    assert "Letter 1" in both
    assert "Letter 2" in both
    one = (await site.get("/mail", params={"account": "other@example.org"})).text
    assert "Letter 1" not in one
    assert "Letter 2" in one
    unknown = await site.get("/mail", params={"account": "nobody@example.org"})
    assert unknown.status_code == 422
    assert "nobody@example.org is not in the archive" in unknown.text


@pytest.mark.req("PL-7")
async def test_a_message_is_shown_in_a_sandbox_with_what_was_left_out(site: Site) -> None:
    (key,) = await archive_mail(site, [mail(1, TWO_PARTS)])
    page = (await site.get(f"/mail/{ME}/{key}")).text
    assert f'src="/mail/{ME}/{key}/body" sandbox="allow-popups allow-popups-to-escape-sandbox"' in page
    assert "1 remote picture not loaded" in page
    assert "https://x.example/" in page
    assert "Dear" not in page
    assert "<p>Dear <b>you</b>,  see <a" in (await site.get(f"/mail/{ME}/{key}/body")).text
    assert "Dear you, see here" in text_of((await site.get(f"/mail/{ME}/{key}?view=text")).text)
    file = await site.get(f"/mail/{ME}/{key}/attachments/0")
    assert file.content == b"<script>1</script>"
    assert file.headers["content-type"] == "application/octet-stream"
    assert 'filename="page.html"' in file.headers["content-disposition"]


async def test_the_raw_message_is_what_was_stored(site: Site) -> None:
    sent = mail(1)
    (key,) = await archive_mail(site, [sent])
    for where in (f"/mail/{ME}/{key}/raw", f"/api/mail/{ME}/{key}/raw"):
        answer = await site.get(where)
        assert answer.content == sent.raw
        assert f'filename="{key}.eml"' in answer.headers["content-disposition"]


async def test_a_message_says_what_was_decided_and_done_and_why(site: Site) -> None:
    keys = await archive_mail(site, [mail(1), mail(2)])
    hostile = "<script>alert(1)</script>\u202e"
    await add_decided_mail(site, keys[0], action="archive", confidence=0.9, reason=hostile, needs_review=True)
    page = (await site.get(f"/mail/{ME}/{keys[0]}")).text
    said = text_of(page)
    assert "High priority by known contact" in said
    assert "by the model, 90% sure" in said
    assert "Needs review" in said
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script>alert" not in page
    assert "\u202e" not in page
    assert "Archive the message Completed" in said
    judged = (await site.api("GET", f"/mail/{ME}/{keys[0]}")).json()["judgement"]
    assert judged["decision"]["reason"] == hostile
    assert [taken["action"]["status"] for taken in judged["actions"]] == ["completed"]
    assert "only archived" in (await site.get(f"/mail/{ME}/{keys[1]}")).text
    assert (await site.api("GET", f"/mail/{ME}/{keys[1]}")).json()["judgement"] is None


async def test_a_conversation_is_all_of_its_messages_oldest_first(site: Site) -> None:
    keys = await archive_mail(site, [mail(1, "\r\nfirst"), mail(9_000, "\r\nlast", thread_id="t1"), mail(2)])
    said = text_of((await site.get(f"/mail/{ME}/{keys[0]}/thread")).text)
    assert said.index("first") < said.index("last")
    assert "2 messages, oldest first" in said
    assert "Letter 2 " not in said
    assert "Read all 2" in (await site.get(f"/mail/{ME}/{keys[0]}")).text
    entries = (await site.api("GET", f"/mail/{ME}/{keys[1]}/thread")).json()["entries"]
    assert [entry["text"] for entry in entries] == ["first", "last"]


@pytest.mark.req("FD-5")
async def test_a_conversation_reaches_over_mailboxes_and_names_its_people(site: Site) -> None:
    [first] = await archive_mail(site, [mail(1, "\r\nfirst")])
    answer = mail(2, "References: <1@example.org>\r\n\r\nsecond", sender=f"Me <{ME}>")
    later = mail(3, "In-Reply-To: <2@example.org>\r\n\r\nthird")
    await archive_mail(site, [answer], "old@example.org")
    await archive_mail(site, [later])
    queue = JobQueue(site.app.database, CATALOGUE, site.app.clock)
    await queue.enqueue(NewJob(ARCHIVE_CONVERSATIONS.name, key="conversations"))
    await run_until_idle(queue, {ARCHIVE_CONVERSATIONS.name: conversations_handler(site.app)})
    whole = (await site.api("GET", f"/mail/{ME}/{first}/thread")).json()
    assert [(each["account"], each["text"]) for each in whole["entries"]] == [
        (ME, "first"),
        ("old@example.org", "second"),
        (ME, "third"),
    ]
    assert whole["count"] == 3
    assert whole["people"][0] == {"address": "ann@example.org", "wrote": 2, "received": 0}
    page = (await site.get(f"/mail/{ME}/{first}")).text
    assert "Read all 3" in page
    assert f"/mail?query=thread:{whole['name']}" in page
    assert "ann@example.org wrote 2" in text_of(page)
    assert "old@example.org" in text_of(page)
    assert "ann@example.org wrote 2" in text_of((await site.get(f"/mail/{ME}/{first}/thread")).text)
    rows = (await site.api("GET", "/mail/conversations", params={"view": "inbox"})).json()["items"]
    assert [(row["conversation"], row["newest"]["account"], len(row["keys"])) for row in rows] == [
        (whole["name"], ME, 2),
        (whole["name"], "old@example.org", 1),
    ]
    bound = await site.token(Role.DASHBOARD, endpoint_identity=ME)
    async with site.stranger(headers={"Authorization": f"Bearer {bound}"}) as http:
        part = (await http.get(f"/api/mail/{ME}/{first}/thread")).json()
        assert [each["text"] for each in part["entries"]] == ["first", "third"]
        assert "old@example.org" not in str(part)


async def test_a_very_long_conversation_comes_in_parts_and_nothing_is_missing(site: Site) -> None:
    keys = await archive_mail(site, [mail(number, thread_id="t1") for number in range(250)])
    seen, before = list[str](), None
    while True:
        query = "" if before is None else f"?before={before}"
        answer = (await site.api("GET", f"/mail/{ME}/{keys[0]}/thread{query}")).json()
        seen = [entry["key"] for entry in answer["entries"]] + seen
        if (before := answer["before"]) is None:
            break
    assert seen == sorted(keys)
    assert "Older messages" in (await site.get(f"/mail/{ME}/{keys[0]}/thread")).text


async def test_what_is_not_there_is_not_found(site: Site) -> None:
    (key,) = await archive_mail(site, [mail(1)])
    for path in ("nonsense", "nonsense/body", "nonsense/raw", "nonsense/thread", f"{key}/attachments/0"):
        for where in (f"/mail/{ME}/{path}", f"/api/mail/{ME}/{path}".removesuffix("/body")):
            assert (await site.get(where)).status_code == 404, where
    assert (await site.get(f"/mail/stranger@example.org/{key}")).status_code == 404
    assert (await site.get(f"/mail/nobody/{key}")).status_code == 422
    assert (await site.get("/mail?after=nonsense")).status_code == 422
    assert (await site.get(f"/mail/{ME}/{key}/attachments/x")).status_code == 422
    assert (await site.get("/mail/..%2f..%2fetc/passwd")).status_code in (404, 422)


@pytest.mark.req("PL-7")
async def test_nobody_without_a_login_reads_any_of_it(site: Site) -> None:
    (key,) = await archive_mail(site, [mail(1, TWO_PARTS)])
    async with site.stranger() as stranger:
        for path in ("", "/body", "/raw", "/thread", "/attachments/0"):
            for where in ("/mail", f"/mail/{ME}/{key}{path}", f"/api/mail/{ME}/{key}{path}", "/api/mail"):
                answer = await stranger.get(where)
                assert answer.status_code == 401, where
                assert "Dear" not in answer.text


@pytest.mark.req("HW-1")
async def test_a_message_that_cannot_be_read_has_a_page_that_says_why(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_reading(monkeypatch, lambda raw: b"Letter 2" in raw, RecursionError)
    _, key = await archive_mail(site, [mail(1), mail(2)])
    page = await site.get(f"/mail/{ME}/{key}")
    said = text_of(page.text)
    assert page.status_code == 200
    assert "This message could not be parsed: RecursionError in mail.py" in said
    assert "Letter 2" in said
    assert (await site.get(f"/mail/{ME}/{key}/raw")).content == mail(2).raw
    assert (await site.api("GET", f"/mail/{ME}/{key}")).json()["message"]["trouble"] == "RecursionError in mail.py"


@pytest.mark.req("HW-1", "HW-2")
@pytest.mark.parametrize(
    "body",
    [
        "Content-Type: text/html\r\n\r\n<a href='&#" + "9" * 5_000 + ";'>Hi &#" + "9" * 5_000 + ";</a>",
        "Content-Transfer-Encoding: base64\r\n\r\n" + "!A" * 200_001,
    ],
    ids=["long reference", "damaged base64"],
)
async def test_the_mails_that_stopped_everything_have_pages(site: Site, body: str) -> None:
    [key] = await archive_mail(site, [mail(1, body)])
    for path in ("", "/body", "/thread"):
        assert (await site.get(f"/mail/{ME}/{key}{path}")).status_code == 200
