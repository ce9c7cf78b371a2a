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

from postroom.audit import SYSTEM, AuditEntry, AuditFilter, list_entries
from postroom.dashboard.security import passphrase
from postroom.dashboard.security.login import local_path
from postroom.dashboard.security.passphrase import (
    BEFORE_SLOWING,
    FAILED_LOGIN,
    FROM_AN_ADDRESS,
    FailedLogins,
    Guesser,
    admit_attempt,
    delay_after,
    first_link,
    fresh_link,
)
from postroom.db import Tx
from postroom.db.tables.access import dashboard_links, dashboard_passphrases, dashboard_sessions
from postroom.domain.clock import ManualClock
from tests.support.commands import command
from tests.support.dashboards import Site, open_site
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
        return [link for link in made if passphrase.is_good_link(tx, link, site.app.clock.now())]

    for _ in range(10):
        made = await asyncio.gather(link_of(site), link_of(site))
        assert len(await site.read(partial(opening, made=made))) == 1


@pytest.mark.req("PL-6", "PL-7")
async def test_neither_link_nor_cookie_nor_passphrase_is_in_the_database(site: Site) -> None:
    link = await link_of(site)
    async with site.stranger() as person:
        await set_phrase(person, link)
        secrets = list(person.cookies.values())
    tables = (dashboard_links, dashboard_sessions, dashboard_passphrases)
    rows = str([await site.read(lambda tx, t=table: tx.execute(select(t)).all()) for table in tables])  # type: ignore[misc]
    assert len(secrets) == 2  # of the session, and of the browser
    assert not [text for text in (link, *secrets, PHRASE) if text in rows]


async def test_only_a_passphrase_that_replaces_another_speaks_of_logins_and_tokens_that_exist(site: Site) -> None:
    async def asked() -> str:
        async with site.stranger() as person:
            return (await person.get("/welcome", params={"link": await link_of(site)})).text

    first = await asked()
    async with site.stranger() as person:
        assert (await set_phrase(person, await link_of(site))).status_code == 303
    again = await asked()
    for words in ("All existing logins are ended", "Also revoke all tokens"):
        assert (words in first, words in again) == (False, True)


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
        assert (wrong.status_code, "is wrong" in wrong.text) == (422, True)
        right = await person.post("/login", data={"passphrase": PHRASE, "next": "/queue?state=failed"})
        assert (right.status_code, right.headers["location"]) == (303, "/queue?state=failed")
        assert (await person.get("/login")).status_code == 303


@pytest.mark.parametrize(
    "target", ["//evil.example", "/\\evil.example", "https://evil.example", "", "javascript:x", "/\r\nx"]
)
def test_login_never_leads_away(target: str) -> None:
    assert local_path(target) == "/"


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


async def guess(http: httpx2.AsyncClient, phrase: str, **headers: str) -> int:
    return (await http.post("/login", data={"passphrase": phrase}, headers=headers)).status_code


async def failures(site: Site) -> list[AuditEntry]:
    """The oldest first."""
    return (await site.read(lambda tx: list_entries(tx, AuditFilter(action=FAILED_LOGIN, limit=200)))).entries[::-1]


@pytest.mark.req("HW-3")
async def test_a_browser_that_was_logged_in_before_is_not_locked_out_by_the_guesses_of_others(site: Site) -> None:
    async with site.stranger() as owner, site.stranger() as other:
        await set_phrase(owner, await link_of(site))
        await owner.post("/logout", headers={"x-csrf-token": "none"})
        session = next(name for name in owner.cookies if "device" not in name)
        del owner.cookies[session]
        assert [await guess(other, f"wrong guess {n}") for n in range(6)] == [422] * 5 + [429]
        assert await guess(other, PHRASE) == 429
        assert await guess(owner, PHRASE) == 303
        assert await guess(other, PHRASE) == 303  # it lifted what stood against the address


@pytest.mark.req("HW-3")
async def test_the_cookie_of_such_a_browser_has_its_own_few_guesses_and_opens_nothing(site: Site) -> None:
    async with site.stranger() as owner:
        await set_phrase(owner, await link_of(site))
        device = {name: value for name, value in owner.cookies.items() if "device" in name}
    async with site.stranger(cookies=device) as thief:
        assert (await thief.get("/api/queue")).status_code == 401
        assert [await guess(thief, f"wrong guess {n}") for n in range(6)] == [422] * 5 + [429]
    forged = {name: value[:-1] + ("0" if value[-1] != "0" else "1") for name, value in device.items()}
    async with site.stranger(cookies=forged) as forger:
        assert [await guess(forger, f"wrong guess {n}") for n in range(6)] == [422] * 5 + [429]


@pytest.mark.req("HW-3")
async def test_a_fresh_link_gets_through_and_lifts_the_throttle(site: Site) -> None:
    async with site.stranger() as person, site.stranger() as again:
        await set_phrase(person, await link_of(site))
        assert [await guess(again, f"wrong guess {n}") for n in range(6)] == [422] * 5 + [429]
        assert (await set_phrase(again, await link_of(site), "another phrase altogether")).status_code == 303
    async with site.stranger() as elsewhere:
        assert await guess(elsewhere, "another phrase altogether") == 303


@pytest.mark.req("HW-3")
async def test_guesses_from_many_addresses_slow_strangers_down_and_shut_nobody_out(site: Site) -> None:
    now = site.app.clock.now()

    def many(tx: Tx) -> None:
        for n in range(BEFORE_SLOWING + 10):
            admit_attempt(tx, Guesser(f"203.0.113.{n}"), now)

    async with site.stranger() as person:
        await set_phrase(person, await link_of(site))
    await site.write(many)
    attempt = await site.write(lambda tx: admit_attempt(tx, Guesser("198.51.100.1"), now))
    assert attempt.delay_s == delay_after(BEFORE_SLOWING + 10) > delay_after(BEFORE_SLOWING) > 0
    remembered = await site.write(lambda tx: admit_attempt(tx, Guesser("198.51.100.1", "browser"), now))
    assert remembered.delay_s == delay_after(BEFORE_SLOWING - 1) == 0
    assert delay_after(10_000) == 8
    async with site.stranger() as elsewhere:
        assert await guess(elsewhere, PHRASE) == 303


@pytest.mark.req("HW-3", "HW-5")
async def test_failed_logins_are_in_the_audit_once_a_minute_without_the_guess(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_site(tmp_path / "home", clock=clock) as site, site.stranger() as person:
        await set_phrase(person, await link_of(site))
        person.cookies.clear()
        for n in range(7):
            await guess(person, f"wrong guess {n}", **{"x-forwarded-for": f"6.6.6.{n}"})
        clock.advance(61)
        await guess(person, "wrong guess 8")
        told = await failures(site)
    assert [(entry.actor.role, entry.after) for entry in told] == [
        ("stranger", {"address": "127.0.0.1", "count": 1, "refused": 0}),
        ("stranger", {"address": "127.0.0.1", "count": 7, "refused": 3}),
    ]
    assert "wrong guess" not in str(told)


@pytest.mark.req("HW-5")
async def test_failed_logins_of_many_addresses_are_gathered_and_none_is_lost_at_the_end(site: Site) -> None:
    failed = FailedLogins(site.app.database, ManualClock())
    async with failed.running():
        for n in range(200):
            await failed.note(f"203.0.113.{n}")
        await failed.note("203.0.113.1")
    told = [entry.after or {} for entry in await failures(site)]
    assert sum(after["count"] for after in told) == 201
    assert len(told) <= 63
    assert {"address": "other addresses", "count": 139, "refused": 0} in told


@pytest.mark.req("HW-3")
async def test_a_stranger_may_send_little_and_the_owner_a_form_of_bounded_parts(site: Site) -> None:
    async with site.stranger() as person:
        answer = await person.post("/login", data={"passphrase": "x" * 20_000})
        assert (answer.status_code, "16,384 bytes" in answer.text) == (413, True)
    many = "&".join(f"a{n}=1" for n in range(5_000))
    headers = {"content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "same-origin"}
    assert (await site.http.post("/logout", content=many, headers=headers)).status_code == 422
    bomb = await site.api("POST", "/rules", content=b"[" + b"{}," * 60_000)
    assert (bomb.status_code, "values" in bomb.text) == (413, True)
    assert (await site.get("/queue")).status_code == 200


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
