"""No page makes us talk to where we should not, and no answer is too large, too slow or too strange to survive."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import httpx2
import pytest

from postroom.domain.errors import BadInput, Retryable
from postroom.sim.web.server import SiteFault, SiteSim, running_site
from postroom.web.fetching.interface import (
    BadAnswer,
    FetchLimits,
    ForbiddenAddress,
    Missing,
    Purpose,
    Refused,
    TooLarge,
    Unavailable,
    Validators,
)
from tests.support.mail_domains import certificate_for
from tests.support.web_fetching import NameServer, NoPace, plain_fetcher
from tests.support.web_servers import answering, page

EVIDENCE = Purpose.EVIDENCE
pytestmark = pytest.mark.req("WB-13")


@pytest.fixture
async def sim() -> AsyncIterator[SiteSim]:
    async with running_site(20) as site:
        yield site


async def test_a_page_is_fetched_with_what_a_later_question_needs(sim: SiteSim) -> None:
    async with plain_fetcher() as fetcher:
        fetched = await fetcher.get(f"{sim.url}/documents/1", purpose=EVIDENCE)
        assert (fetched.status, fetched.content_type, fetched.charset) == (200, "text/html", "utf-8")
        assert "<article>" in fetched.text
        again = await fetcher.get(f"{sim.url}/documents/1", purpose=EVIDENCE, conditional=fetched.validators)
    assert again.not_modified
    assert again.body == b""
    assert sim.journal.visits[0].agent == "Postroom/test"


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/",
        "http://[::1]:{port}/",
        "http://[::ffff:127.0.0.1]:{port}/",
        "http://localhost:{port}/",
        "http://10.0.0.1/",
        "http://169.254.169.254/latest/meta-data/",
        "http://[fd00:ec2::254]/",
        "http://0.0.0.0:{port}/",
        "http://224.0.0.1/",
        "http://100.64.0.1/",
    ],
)
async def test_private_addresses_are_refused_and_never_connected_to(sim: SiteSim, url: str) -> None:
    port = sim.url.rpartition(":")[2]
    async with plain_fetcher(allowed=()) as fetcher:
        with pytest.raises(ForbiddenAddress):
            await fetcher.get(url.format(port=port), purpose=EVIDENCE)
    assert sim.journal.visits == []


async def test_an_allowed_name_does_not_open_the_metadata_address() -> None:
    names = NameServer({"intranet.test": [["169.254.169.254"]]})
    async with plain_fetcher(allowed=["intranet.test"], resolver=names) as fetcher:
        with pytest.raises(ForbiddenAddress, match="cannot be allowed"):
            await fetcher.get("http://intranet.test/", purpose=EVIDENCE)


async def test_a_host_may_be_allowed_on_one_port_only(sim: SiteSim) -> None:
    port = sim.url.rpartition(":")[2]
    async with running_site(1) as other, plain_fetcher(allowed=[f"127.0.0.1:{port}"]) as fetcher:
        await fetcher.get(f"{sim.url}/about", purpose=EVIDENCE)
        with pytest.raises(ForbiddenAddress):
            await fetcher.get(f"{other.url}/about", purpose=EVIDENCE)


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["fe80::1%eth0"], ["::ffff:10.1.1.1"]])
async def test_a_name_that_leads_inside_is_refused(addresses: list[str]) -> None:
    names = NameServer({"evil.test": [addresses]})
    async with plain_fetcher(allowed=(), resolver=names) as fetcher:
        with pytest.raises(ForbiddenAddress):
            await fetcher.get("http://evil.test/", purpose=EVIDENCE)


class _Recorder(httpx2.AsyncBaseTransport):
    def __init__(self, redirect_to: str | None = None) -> None:
        self.requests: list[httpx2.Request] = []
        self._redirect_to = redirect_to

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        if self._redirect_to and len(self.requests) == 1:
            return httpx2.Response(302, headers={"location": self._redirect_to})
        return httpx2.Response(200, stream=httpx2.ByteStream(b"hello"))


async def test_a_name_that_changes_its_answer_gains_nothing() -> None:
    """Checked and connected to is one and the same address: the name is asked once, and the connection goes there."""
    names = NameServer({"rebind.test": [["93.184.216.34"], ["127.0.0.1"]]})
    recorder = _Recorder()
    async with plain_fetcher(allowed=(), resolver=names, transport=recorder) as fetcher:
        await fetcher.get("https://rebind.test:8443/a?b=c", purpose=EVIDENCE)
    assert names.asked == ["rebind.test"]
    (request,) = recorder.requests
    assert request.url.host == "93.184.216.34"
    assert request.url.port == 8443
    assert request.headers["host"] == "rebind.test:8443"
    assert request.extensions["sni_hostname"] == "rebind.test"


async def test_a_name_that_changes_between_two_hops_is_checked_again() -> None:
    names = NameServer({"rebind.test": [["93.184.216.34"], ["127.0.0.1"]]})
    recorder = _Recorder("/elsewhere")
    async with plain_fetcher(allowed=(), resolver=names, transport=recorder) as fetcher:
        with pytest.raises(ForbiddenAddress):
            await fetcher.get("http://rebind.test/", purpose=EVIDENCE)
    assert len(recorder.requests) == 1


@pytest.mark.parametrize(
    "location",
    [
        "http://169.254.169.254/",
        "http://localhost/",
        "http://127.0.0.2/",
        "http://[::1]/",
        "http://10.0.0.1/",
        "//192.168.0.1/",
        "http://user:pw@127.0.0.1/",
        "http://2130706433/",
    ],
)
async def test_a_redirect_leads_nowhere_that_is_not_public(sim: SiteSim, location: str) -> None:
    async with plain_fetcher() as fetcher:
        with pytest.raises(ForbiddenAddress):
            await fetcher.get(f"{sim.url}/redirect-to?url={location}", purpose=EVIDENCE)
    assert len(sim.journal.visits) == 1


@pytest.mark.parametrize("location", ["file:///etc/passwd", "gopher://x/", "http://[::1", ""])
async def test_a_redirect_to_no_web_address_is_the_end(sim: SiteSim, location: str) -> None:
    async with plain_fetcher() as fetcher:
        with pytest.raises(BadAnswer):
            await fetcher.get(f"{sim.url}/redirect-to?url={location}", purpose=EVIDENCE)


async def test_redirects_are_followed_within_bounds(sim: SiteSim) -> None:
    async with plain_fetcher() as fetcher:
        fetched = await fetcher.get(f"{sim.url}/redirect-chain/5", purpose=EVIDENCE)
        assert fetched.final_url == f"{sim.url}/about"
        with pytest.raises(BadAnswer, match="after 5"):
            await fetcher.get(f"{sim.url}/redirect-chain/6", purpose=EVIDENCE)
        with pytest.raises(BadAnswer, match="circle"):
            await fetcher.get(f"{sim.url}/redirect-loop/a", purpose=EVIDENCE)


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/bombs/gzip", TooLarge),
        ("/bombs/nested", TooLarge),
        ("/bombs/members", BadAnswer),
        ("/bombs/endless", TooLarge),
        ("/broken/length", TooLarge),
        ("/broken/gzip", BadAnswer),
        ("/broken/encoding", BadAnswer),
        ("/broken/truncated", Unavailable),
        ("/broken/truncated-gzip", Unavailable),
        ("/broken/header", Unavailable),
        ("/nothing", Missing),
    ],
)
async def test_a_hostile_answer_is_refused_and_the_next_page_is_fetched(
    sim: SiteSim, path: str, error: type[Exception]
) -> None:
    async with plain_fetcher() as fetcher:
        with pytest.raises(error):
            await fetcher.get(f"{sim.url}{path}", purpose=EVIDENCE)
        assert (await fetcher.get(f"{sim.url}/about", purpose=EVIDENCE)).status == 200


async def test_a_line_of_ten_megabytes_is_only_long(sim: SiteSim) -> None:
    async with plain_fetcher() as fetcher:
        fetched = await fetcher.get(f"{sim.url}/bombs/long-line", purpose=EVIDENCE)
    assert len(fetched.body) > 10_000_000


@pytest.mark.parametrize("path", ["/odd/charset", "/odd/unknown-charset"])
async def test_any_charset_gives_text(sim: SiteSim, path: str) -> None:
    async with plain_fetcher() as fetcher:
        assert "aba" in (await fetcher.get(f"{sim.url}{path}", purpose=EVIDENCE)).text


async def test_a_page_that_drips_is_given_up_in_time(sim: SiteSim) -> None:
    async with plain_fetcher(limits=FetchLimits(total_s=0.5, read_s=5.0)) as fetcher:
        with pytest.raises(Unavailable, match=r"longer than 0\.5 s"):
            await fetcher.get(f"{sim.url}/slow?seconds=30", purpose=EVIDENCE)


async def test_a_server_that_says_nothing_is_given_up_in_time() -> None:
    silence = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await silence.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with server, plain_fetcher(limits=FetchLimits(total_s=5.0, read_s=0.2)) as fetcher:
        with pytest.raises(Unavailable):
            await fetcher.get(url, purpose=EVIDENCE)
        silence.set()


@pytest.mark.parametrize(
    "answer", [b"", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz"]
)
async def test_what_is_not_http_may_be_later(answer: bytes) -> None:
    async with answering(answer) as url, plain_fetcher() as fetcher:
        with pytest.raises(Retryable):
            await fetcher.get(url, purpose=EVIDENCE)


@pytest.mark.parametrize("header", ["; ;", "text/html; charset", "text/html; charset*=utf-8''x", "ÿ/ÿ", "a" * 5_000])
async def test_a_strange_content_type_is_survived(header: str) -> None:
    answer = page(b"hello", content_type=header).replace("ÿ".encode(), b"\xff")
    async with answering(answer) as url, plain_fetcher() as fetcher:
        assert (await fetcher.get(url, purpose=EVIDENCE)).text == "hello"


@pytest.mark.parametrize(("status", "error"), [(500, Unavailable), (503, Unavailable), (403, Refused), (451, Refused)])
async def test_a_status_becomes_an_error_that_says_whether_to_try_again(
    sim: SiteSim, status: int, error: type[Exception]
) -> None:
    sim.site.faults.append(SiteFault(path="/about", status=status))
    async with plain_fetcher() as fetcher:
        with pytest.raises(error, match=str(status)):
            await fetcher.get(f"{sim.url}/about", purpose=EVIDENCE)


@pytest.mark.req("WB-3")
@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_holds_the_whole_domain(sim: SiteSim, status: int) -> None:
    sim.site.faults.append(SiteFault(path="/about", status=status, retry_after="120"))
    pace = NoPace()
    async with plain_fetcher(pace=pace) as fetcher:
        with pytest.raises(Unavailable) as raised:
            await fetcher.get(f"{sim.url}/about", purpose=EVIDENCE)
    assert raised.value.retry_after == timedelta(seconds=120)
    assert pace.held == [("127.0.0.1", timedelta(seconds=120))]


async def test_a_304_that_nobody_asked_for_is_no_page(sim: SiteSim) -> None:
    sim.site.faults.append(SiteFault(path="/about", status=304))
    async with plain_fetcher() as fetcher:
        with pytest.raises(Refused):
            await fetcher.get(f"{sim.url}/about", purpose=EVIDENCE, conditional=Validators())


async def test_no_cookie_is_ever_sent_back() -> None:
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(page(b"hello", headers="Set-Cookie: who=me\r\n"))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, plain_fetcher() as fetcher:
        for _ in range(2):
            await fetcher.get(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", purpose=EVIDENCE)
    assert len(seen) == 2
    assert not any(b"cookie" in request.lower() for request in seen)


async def test_an_unknown_name_may_be_known_later() -> None:
    async with plain_fetcher(resolver=NameServer({})) as fetcher:
        with pytest.raises(Unavailable, match="looked up"):
            await fetcher.get("http://nowhere.test/", purpose=EVIDENCE)


async def test_the_next_address_is_tried_where_one_does_not_answer(sim: SiteSim) -> None:
    port = sim.url.rpartition(":")[2]
    names = NameServer({"two.test": [["127.0.0.9", "127.0.0.1"]]})
    async with plain_fetcher(allowed=["two.test"], resolver=names) as fetcher:
        assert (await fetcher.get(f"http://two.test:{port}/about", purpose=EVIDENCE)).status == 200


@asynccontextmanager
async def _tls_server(certificate: Path) -> AsyncIterator[tuple[int, list[str], list[bytes]]]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    names: list[str] = []
    requests: list[bytes] = []
    context.sni_callback = lambda connection, name, _: names.append(name or "")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(page(b"hello"))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1], names, requests


async def test_a_pinned_connection_still_speaks_of_the_name(tmp_path: Path) -> None:
    """TLS asks for the name, the certificate is checked against the name, and Host says the name."""
    certificate, trust = certificate_for(tmp_path, "gazette.test")
    resolver = NameServer({"gazette.test": [["127.0.0.1"]], "other.test": [["127.0.0.1"]]})
    async with (
        _tls_server(certificate) as (port, names, requests),
        plain_fetcher(allowed=["gazette.test", "other.test"], resolver=resolver, tls=trust) as fetcher,
    ):
        assert (await fetcher.get(f"https://gazette.test:{port}/", purpose=EVIDENCE)).body == b"hello"
        with pytest.raises(Unavailable, match=r"(?i)certificate"):
            await fetcher.get(f"https://other.test:{port}/", purpose=EVIDENCE)
    assert names == ["gazette.test", "other.test"]
    assert len(requests) == 1
    assert f"Host: gazette.test:{port}".encode() in requests[0]


async def test_a_url_that_cannot_be_read_is_bad_input() -> None:
    async with plain_fetcher() as fetcher:
        with pytest.raises(BadInput):
            await fetcher.get("nonsense", purpose=EVIDENCE)
