"""Getting in: the one-time link, the passphrase, the throttle; and getting out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from sqlalchemy import select

from postroom.audit import SYSTEM
from postroom.dashboard.entering import first_link, fresh_link
from postroom.dashboard.pages.entrance import local
from postroom.dashboard.security import links
from postroom.dashboard.security.throttle import FROM_AN_ADDRESS
from postroom.db import Tx
from postroom.db.tables.dashboard import dashboard_links, dashboard_passphrases, dashboard_sessions
from postroom.domain.clock import ManualClock
from tests.support.dashboards import Site, open_site
from tests.support.processes import command
from tests.support.switchboards import SwitchboardProcess

PHRASE = "correct horse battery staple"


async def link_of(site: Site) -> str:
    address = urlsplit(await fresh_link(site.app, site.url, SYSTEM))
    return address.query.removeprefix("link=")


async def set_phrase(
    http: httpx2.AsyncClient, link: str, phrase: str = PHRASE, again: str | None = None
) -> httpx2.Response:
    return await http.post("/welcome", data={"link": link, "passphrase": phrase, "repeated": again or phrase})


@pytest.mark.req("PL-7")
async def test_the_link_sets_a_passphrase_logs_in_and_works_once(site: Site) -> None:
    link = await link_of(site)
    async with site.stranger() as person:
        assert (await person.get("/welcome", params={"link": link})).status_code == 200
        answer = await set_phrase(person, link)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=lax" in cookie
        assert (await person.get("/queue")).status_code == 200
        assert (await person.get("/welcome", params={"link": link})).status_code == 403
        assert (await set_phrase(person, link)).status_code == 403
    assert (await site.get("/queue")).status_code == 401  # whoever was in with the old one is out


@pytest.mark.req("PL-7")
async def test_of_links_made_at_once_the_last_one_opens(site: Site) -> None:
    def opening(tx: Tx, made: Sequence[str]) -> list[str]:
        return [link for link in made if links.is_good(tx, link, site.app.clock.now())]

    for _ in range(10):
        made = await asyncio.gather(link_of(site), link_of(site))
        assert len(await site.read(partial(opening, made=made))) == 1


@pytest.mark.req("PL-6", "PL-7")
async def test_neither_link_nor_cookie_nor_passphrase_is_in_the_database(site: Site) -> None:
    link = await link_of(site)
    async with site.stranger() as person:
        await set_phrase(person, link)
        (secret,) = person.cookies.values()
    tables = (dashboard_links, dashboard_sessions, dashboard_passphrases)
    rows = str([await site.read(lambda tx, t=table: tx.execute(select(t)).all()) for table in tables])  # type: ignore[misc]
    assert not [text for text in (link, secret, PHRASE) if text in rows]


async def test_somebody_who_is_logged_in_may_use_a_link_too(site: Site) -> None:
    link = await link_of(site)
    form = await site.get("/welcome", params={"link": link})
    assert f'name="csrf" value="{site.csrf}"' in form.text
    answer = await site.post("/welcome", link=link, passphrase=PHRASE, repeated=PHRASE)
    assert answer.status_code == 303
    assert (await site.get("/queue")).status_code == 200


async def test_of_two_who_use_a_link_at_once_one_gets_in(site: Site) -> None:
    link = await link_of(site)
    async with site.stranger() as one, site.stranger() as other:
        answers = await asyncio.gather(set_phrase(one, link), set_phrase(other, link, "another phrase altogether"))
    assert sorted(answer.status_code for answer in answers) == [303, 403]


@pytest.mark.parametrize(
    ("phrase", "again", "said"),
    [
        ("short", "short", "at least 12"),
        ("a" * 40, "a" * 40, "too few different"),
        (PHRASE, PHRASE + "x", "not the same"),
        ("xyz12" * 300, "xyz12" * 300, "too long"),
    ],
    ids=["short", "monotonous", "mistyped", "long"],
)
async def test_a_passphrase_that_will_not_do_is_refused_beside_its_field_and_the_link_stays(
    site: Site, phrase: str, again: str, said: str
) -> None:
    link = await link_of(site)
    async with site.stranger() as person:
        answer = await set_phrase(person, link, phrase, again)
        assert answer.status_code == 422
        assert said in answer.text
        assert 'aria-invalid="true"' in answer.text
        assert f'value="{phrase}' not in answer.text
        assert (await person.get("/welcome", params={"link": link})).status_code == 200


async def test_login_takes_the_passphrase_and_leads_to_where_one_wanted_to_go(site: Site) -> None:
    async with site.stranger() as person:
        await set_phrase(person, await link_of(site))
    async with site.stranger() as person:
        wanted = await person.get("/queue?state=failed", headers={"accept": "text/html"})
        assert wanted.headers["location"] == "/login?next=%2Fqueue%3Fstate%3Dfailed"
        form = await person.get(wanted.headers["location"])
        assert 'value="/queue?state=failed"' in form.text
        wrong = await person.post("/login", data={"passphrase": "wrong wrong wrong", "next": "/queue"})
        assert (wrong.status_code, "is not right" in wrong.text) == (422, True)
        right = await person.post("/login", data={"passphrase": PHRASE, "next": "/queue?state=failed"})
        assert (right.status_code, right.headers["location"]) == (303, "/queue?state=failed")
        assert (await person.get("/login")).status_code == 303


@pytest.mark.parametrize(
    "target", ["//evil.example", "/\\evil.example", "https://evil.example", "", "javascript:x", "/\r\nx"]
)
def test_login_never_leads_away(target: str) -> None:
    assert local(target) == "/"


@pytest.mark.req("PL-7")
async def test_guessing_is_slowed_down_and_the_right_passphrase_counts_again_later(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_site(tmp_path / "home", clock=clock) as site, site.stranger() as person:
        await set_phrase(person, await link_of(site))
        person.cookies.clear()
        guesses = [person.post("/login", data={"passphrase": f"wrong guess {n}"}) for n in range(FROM_AN_ADDRESS + 3)]
        statuses = [answer.status_code for answer in await asyncio.gather(*guesses)]
        assert sorted(statuses) == [422] * FROM_AN_ADDRESS + [429] * 3
        even_right = await person.post("/login", data={"passphrase": PHRASE})
        assert even_right.status_code == 429
        assert 0 < int(even_right.headers["retry-after"]) <= 900
        clock.advance(901)
        assert (await person.post("/login", data={"passphrase": PHRASE})).status_code == 303


async def test_a_login_from_the_page_of_another_site_is_refused(site: Site) -> None:
    async with site.stranger(headers={"sec-fetch-site": "cross-site"}) as victim:
        assert (await victim.post("/login", data={"passphrase": PHRASE})).status_code == 403
        assert (await set_phrase(victim, await link_of(site))).status_code == 403


async def test_logging_out_ends_the_session_and_not_only_the_cookie(site: Site) -> None:
    out = await site.post("/logout")
    assert out.headers["location"] == "/login?said=out"
    assert "logged out" in (await site.get("/login?said=out")).text
    site.http.cookies.update(site.cookie)
    assert (await site.get("/queue")).status_code == 401


async def test_a_login_ends_after_its_time_and_after_a_week_without_use(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_site(tmp_path / "home", clock=clock) as site:
        for _ in range(4):
            clock.advance(6 * 86_400)
            assert (await site.get("/queue")).status_code == 200
        clock.advance(7 * 86_400 + 1)
        assert (await site.get("/queue")).status_code == 401


async def test_links_end_after_an_hour_and_with_the_next_one(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_site(tmp_path / "home", clock=clock) as site, site.stranger() as person:
        first, second = await link_of(site), await link_of(site)
        assert (await person.get("/welcome", params={"link": first})).status_code == 403
        clock.advance(3_601)
        assert (await person.get("/welcome", params={"link": second})).status_code == 403


async def test_there_is_no_first_link_once_a_passphrase_is_set(site: Site) -> None:
    assert await first_link(site.app, site.url, SYSTEM) is not None
    async with site.stranger() as person:
        await set_phrase(person, await link_of(site))
    assert await first_link(site.app, site.url, SYSTEM) is None


@pytest.mark.req("PL-7")
async def test_a_person_gets_in_with_what_the_switchboard_printed(home: Path) -> None:
    running = SwitchboardProcess(home)
    await super(SwitchboardProcess, running).start()
    try:
        ready = await running.ready()
        async with httpx2.AsyncClient(base_url=ready["url"]) as person:
            link = urlsplit(ready["welcome"]).query.removeprefix("link=")
            assert (await set_phrase(person, link)).status_code == 303
            assert (await person.get("/queue")).status_code == 200
        printed = await command(home, "token", "link")
        assert printed.stdout.startswith(f"{ready['url']}/welcome?link=prt_link_")
        code, _ = await running.end()
        assert code == 0
    finally:
        await running.kill()
