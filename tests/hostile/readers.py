"""What of Postroom reads which hostile bytes, and what it may cost.

A reader takes any bytes and returns nothing. It may refuse them with one of our own errors (`PostroomError`): those are
caught here and count as an answer. Any other exception is a failure of the reader.
"""

from __future__ import annotations

import asyncio
import io
import json
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from postroom.actions.discord.interactions import DiscordInteractions
from postroom.actions.outbound.letters import forward_of
from postroom.archive.importing.interpreting import plain, takeout
from postroom.archive.importing.mbox import MboxReader
from postroom.archive.importing.sources import eml_files, open_takeout
from postroom.archive.importing.state import FoundMessage
from postroom.archive.messages import IncomingMail, Provenance
from postroom.archive.preparing import prepare
from postroom.contract.agent import SEARCH, SearchArguments, SearchReply
from postroom.dashboard.display.foreign_content import frame_document, linked, safe_html
from postroom.dashboard.web.evidence import shown_page
from postroom.domain.envelope import parse_envelope
from postroom.domain.errors import PostroomError
from postroom.domain.model_costs import TokenCounts
from postroom.domain.roles import Caller, Permission, Role
from postroom.mail import categories
from postroom.mail.address_books import read_csv, read_vcards
from postroom.mail.addresses import Address
from postroom.mail.authentication import authentication_of
from postroom.mail.composing import reply_to
from postroom.mail.headers import triage_headers
from postroom.mail.html import remote_pictures
from postroom.mail.parsing import parse_mail
from postroom.mail.query import parse
from postroom.mail.query.nodes import format_query
from postroom.mail.tier_policy import SEED, parse_policy
from postroom.mail.unsubscribing import unsubscribe_offer
from postroom.mailboxes.browser_login import parse_client_secrets
from postroom.mailboxes.gmail import fetching, resources
from postroom.mailboxes.gmail.error_mapping import CallDescription, GmailAnswer, error_of
from postroom.mailboxes.gmail.methods import GmailMethod
from postroom.mailboxes.gmail.transport import read_as, read_json
from postroom.mailboxes.imap.autoconfig import BadDnsAnswer, RecordKind, dns_query, read_autoconfig, read_dns_answer
from postroom.reading.limited import ReadingLimits
from postroom.settings.groups import DiscordSettings
from postroom.switchboard.toolbox import Tool
from postroom.triage.choices import ToolOffer, UnusableAnswer, read_answer
from postroom.triage.questions import ModelAnswer, ToolCall
from postroom.triage.rules.files import RulesFileFormat, parse_text
from postroom.triage.signs import suspicion_of
from postroom.web.extraction import child_tasks
from postroom.web.extraction.web_reader import WebDocument, WebReader
from postroom.web.fetching.decompression import decode_body
from postroom.web.fetching.interface import Fetched, Validators
from postroom.web.fetching.targets import read_target
from postroom.web.fetching.urls import canonicalize_url
from postroom.web.listings import DateWindow, read_feed, read_sitemap
from postroom.web.sources import parse_sources
from postroom.web.strategies import WalkPlace, WalkStrategy, strategy_of

MB = 1 << 20
_ME = Address("me@example.com", "Me")
_NOW = datetime(2026, 3, 2, 10, tzinfo=UTC)
_LARGEST_PAGE = 10 * MB


@dataclass(frozen=True)
class Reader:
    read: Callable[[bytes], object]
    seconds: float = 0.5
    """Processor time for an item of next to no size, on one core."""
    seconds_per_mb: float = 0.03
    """So that 50 MB cost two seconds at most (HW-2)."""
    memory_mb: float = 50
    memory_times: float = 4
    """The most it may grow by: so much, and so many times the item's size."""
    is_apart: bool = False
    """Done by the limited child, whose limits stand for it: only the process that asks is measured."""

    def seconds_for(self, size: int) -> float:
        return self.seconds + self.seconds_per_mb * size / MB

    def memory_for(self, size: int) -> float:
        return self.memory_mb * MB + self.memory_times * size


def _parsed(raw: bytes) -> None:
    """What HW-2 bounds at any size: parsing and text, without storing."""
    parsed = parse_mail(raw)
    _ = (parsed.best_text, parsed.html_as_text)


def _mail(raw: bytes) -> None:
    parsed = parse_mail(raw)
    _ = (parsed.best_text, parsed.html_as_text, parsed.list_id, parsed.precedence, parsed.auto_submitted)
    headers = parsed.headers
    triage_headers(headers)
    authentication_of(headers, ("mx.google.com", "mx.example"), "b.example")
    unsubscribe_offer(headers, ("mx.google.com", "mx.example"))
    categories.shipped().matching(categories.facts_of(headers))
    SEED.decide(headers, ())
    prepare(IncomingMail(raw, Provenance.API))


def _shown(raw: bytes) -> None:
    """As a person sees it, as the model is asked about it, as it is answered and passed on."""
    parsed = parse_mail(raw)
    frame_document(safe_html(parsed.html or ""))
    remote_pictures(parsed.html or "")
    linked(parsed.best_text[:LONGEST_SHOWN])
    suspicion_of([parsed.subject, parsed.best_text[:LONGEST_ASKED]])
    forward_of(parsed, raw, from_=_ME, to=(_ME,)).to_bytes()
    with suppress(PostroomError):  # not everybody can be answered
        reply_to(parsed, from_=_ME, text="Thanks", reply_all=True)


LONGEST_SHOWN = 512 << 10
LONGEST_ASKED = 64 << 10


def _decoded(data: bytes) -> None:
    encoding, _, body = data.partition(b"|")
    decode_body(body, encoding.decode("latin-1"), _LARGEST_PAGE)


_LIMITS = ReadingLimits(cpu_seconds=1.0, wall_seconds=60.0, memory_bytes=512 * MB)
_SITE = "http://a.example"
_INNOCENT = WebDocument(b"<html><body><p>Innocent</p></body></html>", "text/html", None, _SITE)


def _apart(ask: Callable[[WebReader, bytes], Awaitable[object]]) -> Callable[[bytes], None]:
    """Has the limited child read it. Whatever becomes of that, the next page, which is innocent, is read."""

    def read(data: bytes) -> None:
        reader = WebReader(_LIMITS)
        try:
            asyncio.run(ask(reader, data))  # type: ignore[arg-type]
        finally:
            if "Innocent" not in asyncio.run(reader.extract(_INNOCENT)).text:
                raise AssertionError("the next page is not read")

    return read


async def _document(reader: WebReader, body: bytes) -> None:
    await reader.extract(WebDocument(body, "text/html", None, _SITE))


async def _robots(reader: WebReader, data: bytes) -> None:
    await reader.robots(_SITE, data.decode("utf-8", "replace"), f"{_SITE}/{'a' * 2_000}", "postroom")


def _listed(mode: str) -> Callable[[WebReader, bytes], Awaitable[object]]:
    route = _route(mode)

    async def read(reader: WebReader, body: bytes) -> None:
        page = Fetched(f"{_SITE}/list", f"{_SITE}/list", 200, body, "", None, Validators(), _NOW)
        await reader.read_list(route, WalkPlace(), page)

    return read


async def _probed(reader: WebReader, data: bytes) -> None:
    await reader.summarize(Fetched(_SITE, _SITE, 200, data, "text/html", None, Validators(), _NOW))


def _route(mode: str) -> WalkStrategy:
    described = f"""
    [[source]]
    slug = "a"
    domains = ["a.example"]
    [[source.endpoint]]
    name = "main"
    mode = "{mode}"
    url = "{_SITE}/list"
    """
    [source] = parse_sources(described).by_slug.values()
    return strategy_of(source, source.endpoint[0], DateWindow(), _NOW.date(), _LARGEST_PAGE)


def _body_of(ask: Callable[[WebReader, bytes], Awaitable[object]]) -> Callable[[WebReader, bytes], Awaitable[object]]:
    """Of a kind that wraps its markup in a message."""
    return lambda reader, data: ask(reader, data.partition(b"\r\n\r\n")[2])


def _url(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    for read in (canonicalize_url, read_target):
        with suppress(PostroomError):
            read(text)


def _mbox(data: bytes) -> None:
    for found in MboxReader(io.BytesIO(data), "a.mbox").messages():
        if isinstance(found, FoundMessage):
            plain(found)


def _takeout(data: bytes) -> None:
    for found in MboxReader(io.BytesIO(data), "a.mbox").messages():
        if isinstance(found, FoundMessage):
            takeout(found)


def _package(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("a.zip", "a.tgz", "a.tar"):
            path = Path(folder) / name
            path.write_bytes(data)
            with suppress(PostroomError):
                for file in open_takeout(path).files():
                    for _ in file.read(0):
                        pass
        (path := Path(folder) / "a.eml").write_bytes(data)
        for file in eml_files(path):
            list(file.read(0))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _json(data: bytes) -> Any:
    """What a strict reader of the outer message makes of it."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _query(data: bytes) -> None:
    for strict in (False, True):
        with suppress(PostroomError):
            format_query(parse(_text(data), int(_NOW.timestamp() * 1_000), strict=strict))


async def _run_nothing(caller: object, arguments: SearchArguments) -> SearchReply:
    return SearchReply(messages=[], next=None, problems=[])


def _tool(data: bytes) -> None:
    tool = Tool(SEARCH, Role.AGENT, Permission.SEARCH, "", _run_nothing)
    value = _json(data)
    given = value if isinstance(value, dict) else {"query": value}
    asyncio.run(tool.call(Caller(Role.AGENT, "a stranger"), given))


_DISCORD_KEY = Ed25519PrivateKey.from_private_bytes(b"\7" * 32)


def _discord(body: bytes) -> None:
    stamp = str(int(_NOW.timestamp())).encode()
    signature = _DISCORD_KEY.sign(stamp + body).hex().encode()
    key = _DISCORD_KEY.public_key().public_bytes_raw().hex()
    queue: Any = SimpleNamespace(clock=SimpleNamespace(now=lambda: _NOW))
    answers = DiscordInteractions(DiscordSettings(public_key=key, allowed_users="1"), queue)
    headers = [(b"x-signature-ed25519", signature), (b"x-signature-timestamp", stamp)]

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(event: Any) -> None:
        pass

    asyncio.run(answers({"type": "http", "method": "POST", "headers": headers}, receive, send))


_GMAIL = (
    *(resources.message, resources.raw_message, resources.message_page, resources.history_page, resources.labels),
    *(resources.profile, resources.thread, resources.drafts),
)


def _gmail(body: bytes) -> None:
    answer = GmailAnswer(200, {"content-type": "application/json"}, body)
    asked = CallDescription(GmailMethod.MESSAGES_GET)
    for status in (400, 403, 429, 500):
        error_of(GmailAnswer(status, answer.headers, body), asked, _NOW)
    value = read_json(answer, asked)
    for make in _GMAIL:
        with suppress(PostroomError):
            read_as(make, value, asked)


def _batch(body: bytes) -> None:
    fetching.batch_answers(GmailAnswer(200, {"content-type": "multipart/mixed; boundary=B"}, body), 100)


_OFFER = ToolOffer(labels=("x",), forward_to=("a@b.example",))


def _model(data: bytes) -> None:
    value = _json(data)
    named = value if isinstance(value, dict) and set(value) == {"name", "arguments"} else None
    call = ToolCall(named["name"], named["arguments"]) if named else ToolCall("archive", _text(data))
    answer = ModelAnswer((call,), "", "m", TokenCounts(1, 1, 0, 0), None, 1, False, False)
    with suppress(UnusableAnswer):
        read_answer(answer, _OFFER)


def _retry_after(data: bytes) -> None:
    text = data.decode("latin-1")
    body = json.dumps({"error": {"message": text, "status": text, "errors": [{"reason": text}]}}).encode()
    headers = {"content-type": "application/json", "retry-after": text, "date": text}
    for status in (403, 429, 503):
        error_of(GmailAnswer(status, headers, body), CallDescription(GmailMethod.MESSAGES_GET), _NOW)


def _as_rules(form: RulesFileFormat) -> Callable[[bytes], object]:
    return lambda data: parse_text(data, form)


def _dns(data: bytes) -> None:
    query = dns_query(0, "_imaps._tcp.example.com", RecordKind.SRV)
    for answer in (data, query[:2] + b"\x81\x80\0\1\0\xff\0\0\0\0" + query[12:] + data):
        with suppress(BadDnsAnswer):
            read_dns_answer(answer, query, RecordKind.SRV)


READERS: dict[str, Reader] = {
    "mail": Reader(_mail),
    "parsed": Reader(_parsed),
    "shown": Reader(_shown),
    "page": Reader(_apart(_body_of(_listed("pagination"))), is_apart=True),
    "document": Reader(_apart(_document), is_apart=True),
    "sitemap": Reader(_apart(_listed("sitemap")), is_apart=True),
    "feed": Reader(_apart(_listed("feed")), is_apart=True),
    "probe": Reader(_apart(_probed), is_apart=True),
    "robots": Reader(_apart(_robots), is_apart=True),
    "shown_page": Reader(lambda data: shown_page(data, "text/html")),
    "decoded": Reader(_decoded),
    "url": Reader(_url),
    "mbox": Reader(_mbox),
    "takeout": Reader(_takeout),
    "package": Reader(_package),
    "vcards": Reader(read_vcards),
    "csv": Reader(read_csv),
    "rules_json": Reader(_as_rules(RulesFileFormat.JSON)),
    "rules_toml": Reader(_as_rules(RulesFileFormat.TOML)),
    "rules_yaml": Reader(_as_rules(RulesFileFormat.YAML), seconds=4.0),
    "sources": Reader(lambda data: parse_sources(_text(data))),
    "categories": Reader(lambda data: categories.load(_text(data))),
    "policy": Reader(lambda data: parse_policy(_json(data))),
    "query": Reader(_query),
    "envelope": Reader(lambda data: parse_envelope(_json(data))),
    "tool": Reader(_tool),
    "discord": Reader(_discord),
    "client_secrets": Reader(lambda data: parse_client_secrets(data, "client_secret.json")),
    "gmail": Reader(_gmail),
    "batch": Reader(_batch),
    "model": Reader(_model),
    "retry_after": Reader(_retry_after),
    "autoconfig": Reader(lambda data: read_autoconfig(data, "me@example.com")),
    "dns": Reader(_dns),
}

_PAGE = _route("pagination")


def _page_here(data: bytes) -> None:
    body = data.partition(b"\r\n\r\n")[2]
    _PAGE.read(WalkPlace(), Fetched(f"{_SITE}/list", f"{_SITE}/list", 200, body, "", None, Validators(), _NOW))


def _document_here(data: bytes) -> None:
    kind = "application/pdf" if data.startswith(b"%PDF") else "text/html"
    child_tasks.document({"content_type": kind, "charset": None, "url": _SITE}, data)


APART_HERE: dict[str, Callable[[bytes], object]] = {
    "page": _page_here,
    "document": _document_here,
    "sitemap": lambda data: read_sitemap(data, _LARGEST_PAGE),
    "feed": lambda data: read_feed(data, _SITE, _LARGEST_PAGE),
    "probe": lambda data: child_tasks.summary({"url": _SITE, "charset": None, "content_type": "text/html"}, data),
    "robots": lambda data: child_tasks.robots({"url": f"{_SITE}/a", "agent": "postroom"}, data),
}
"""What the limited child does, done in this process: for the fuzzer, which looks for its mistakes."""
