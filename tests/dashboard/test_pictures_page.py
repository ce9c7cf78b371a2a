"""Remote pictures on the page of a message: off until asked for, fetched by Postroom and by nobody else."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from postroom.audit import AuditFilter, list_entries
from postroom.domain.roles import Permission, Role
from postroom.settings import WebSettings
from tests.dashboard.test_mail_page import mail
from tests.support.dashboard_data import archive_mail
from tests.support.dashboards import Site, open_site, text_of
from tests.support.mail import ME
from tests.support.pictures import authenticated, png
from tests.support.switchboards import in_a_task
from tests.support.web_servers import Page, TinySite, tiny_site

pytestmark = pytest.mark.req("UX-1")

PICTURE = png()


@dataclass
class Gallery:
    site: Site
    far: TinySite

    async def message(self, number: int, body: str, sender: str = "shop@lists.example", verdict: str = "pass") -> str:
        """The path of a message with this HTML; `{far}` is the address of the picture's server."""
        proof = authenticated("lists.example", verdict)["Authentication-Results"]
        head = f"Authentication-Results: {proof}\r\nContent-Type: text/html\r\n\r\n"
        [key] = await archive_mail(
            self.site, [mail(number, head + body.replace("{far}", self.far.url), sender=sender, thread_id=str(number))]
        )
        return f"/mail/{ME}/{key}"

    async def says(self, path: str) -> str:
        return text_of((await self.site.get(path)).text)

    async def frame(self, path: str) -> tuple[str, str]:
        answer = await self.site.get(f"{path}/body")
        return answer.text, answer.headers["content-security-policy"]


@pytest.fixture
async def gallery(database_url: str, tmp_path: Path) -> AsyncIterator[Gallery]:
    web = WebSettings(allow_private_hosts="127.0.0.1")
    async with tiny_site() as far, in_a_task(open_site(tmp_path / "home", database_url, web=web)) as site:
        far.pages |= {
            "/a.png?id=7": Page(PICTURE, "image/png"),
            "/pixel": Page(png(1, 1), "image/png"),
            "/drawing.svg": Page(b"<svg xmlns='http://www.w3.org/2000/svg'><script>1</script></svg>", "image/png"),
            "/moved": Page(b"", status=302, headers={"location": "/a.png?id=7"}),
            "/inside": Page(b"", status=302, headers={"location": f"http://localhost:{far.url.rpartition(':')[2]}/x"}),
            "/large": Page(b"\x89PNG\r\n\x1a\n" + b"\0" * (5 << 20), "image/png"),
        }
        yield Gallery(site, far)


HTML = (
    '<p>Sale <img src="{far}/a.png?id=7&amp;utm_source=mail" alt="offer"><img src="{far}/pixel">'
    '<img src="{far}/drawing.svg"><img src="{far}/moved"><img src="{far}/inside"><img src="{far}/large">'
    '<img src="http://10.0.0.1/router.png"><img src="{far}/counter" width="1" height="1"></p>'
)


async def test_pictures_are_loaded_once_when_asked_for_and_only_by_postroom(gallery: Gallery) -> None:
    site, far = gallery.site, gallery.far
    path = await gallery.message(1, HTML)
    said = await gallery.says(path)
    assert "8 remote pictures not loaded" in said
    assert "The sender may still learn that this mail was opened." in said
    before, policy = await gallery.frame(path)
    assert "<img" not in before
    assert "img-src" not in policy
    assert far.asked == []
    answer = await site.post(f"{path}/pictures", intent="once", list="view=all")
    assert answer.headers["location"] == f"{path}?list=view%3Dall"
    said = await gallery.says(path)
    assert "2 pictures loaded, 4 pictures could not be downloaded, 2 tracking pictures left out." in said
    assert "2 remote pictures loaded through Postroom" in said
    html, policy = await gallery.frame(path)
    assert html.count(f'src="data:image/png;base64,{base64.b64encode(PICTURE).decode()}"') == 2
    assert policy.endswith("img-src data:")
    assert "sandbox" in policy
    assert sorted(set(far.asked)) == ["/a.png?id=7", "/drawing.svg", "/inside", "/large", "/moved", "/pixel"]
    for request in far.requests:
        assert request.headers.keys() <= {"host", "user-agent", "accept", "accept-encoding", "connection"}
        assert request.headers["user-agent"] == "Mozilla/5.0"
    seen = len(far.asked)
    await gallery.frame(path)
    assert len(far.asked) == seen  # kept for a while
    page = await site.read(lambda tx: list_entries(tx, AuditFilter(action="pictures.load")))
    assert [entry.after for entry in page.entries] == [{"pictures": 7}]


async def test_a_sender_is_allowed_for_authenticated_mail_only_listed_and_removed(gallery: Gallery) -> None:
    site, far = gallery.site, gallery.far
    body = '<p>Hi <img src="{far}/a.png?id=7"></p>'
    good, forged = await gallery.message(1, body), await gallery.message(2, body, verdict="fail")
    other = await gallery.message(3, body, sender="else@lists.example")
    assert "Always for this sender" not in await gallery.says(forged)
    await site.post(f"{forged}/pictures", intent="always")
    assert "Nothing was loaded: the sender of this message is not authenticated" in await gallery.says(forged)
    await site.post(f"{good}/pictures", intent="always")
    said = await gallery.says(good)
    assert "Pictures in authenticated mail from shop@lists.example are loaded from now on." in said
    assert "Remote pictures in authenticated mail from shop@lists.example are loaded automatically." in said
    for path, pictures in ((good, 1), (forged, 0), (other, 0)):
        assert (await gallery.frame(path))[0].count("<img") == pictures
    assert far.asked == ["/a.png?id=7"]
    assert "1 remote picture loaded through Postroom" in await gallery.says(good)
    assert "1 remote picture not loaded" in await gallery.says(forged)
    assert "shop@lists.example" in await gallery.says("/mail/pictures")
    [listed] = (await site.api("GET", "/pictures/senders")).json()
    assert listed["address"] == "shop@lists.example"
    away = await site.post("/mail/pictures/forget", sender="shop@lists.example", back="//evil.example")
    assert away.headers["location"] == "/mail/pictures"
    assert "No sender yet." in await gallery.says("/mail/pictures")
    again = await gallery.message(4, body)
    assert (await gallery.frame(again))[0].count("<img") == 0
    assert (await site.api("DELETE", "/pictures/senders/shop@lists.example")).status_code == 404


async def test_the_api_loads_and_allows_and_a_bound_token_keeps_to_its_mailbox(gallery: Gallery) -> None:
    site = gallery.site
    path = await gallery.message(1, '<img src="{far}/a.png?id=7">')
    key = path.rpartition("/")[2]
    reply = await site.api("POST", f"{path}/pictures")
    assert reply.json() == {"loaded": 1, "failed": 0, "left_out": 0}
    made = await site.api("POST", "/pictures/senders", json={"endpoint_identity": ME, "key": key})
    assert made.json()["address"] == "shop@lists.example"
    assert (await site.api("DELETE", "/pictures/senders/Shop@Lists.example")).status_code == 200
    plain = await gallery.message(2, "<p>No pictures</p>")
    refused = await site.api("POST", f"{plain}/pictures")
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "key")
    assert (await site.api("POST", f"/mail/{ME}/nothing/pictures")).status_code == 404
    bound = await site.token(Role.DASHBOARD, permissions=frozenset({Permission.ACT}), endpoint_identity="x@example.org")
    async with site.stranger(headers={"authorization": f"Bearer {bound}"}) as program:
        assert (await program.post(f"/api{path}/pictures")).status_code == 403


async def test_a_private_address_is_never_asked_unless_the_owner_allowed_its_host(site: Site) -> None:
    async with tiny_site() as far:
        body = f'Content-Type: text/html\r\n\r\n<img src="{far.url}/a.png"><img src="http://localhost/b.png">'
        [key] = await archive_mail(site, [mail(1, body)])
        reply = await site.api("POST", f"/mail/{ME}/{key}/pictures")
        assert reply.json() == {"loaded": 0, "failed": 2, "left_out": 0}
        assert far.asked == []
