"""Changing the passphrase in Settings: only for whoever knows it, as slowly as at the login, and all others are out."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from postroom.audit import SYSTEM, AuditFilter, list_entries
from postroom.dashboard.security import passphrase
from postroom.dashboard.security.passphrase import FROM_AN_ADDRESS, WINDOW
from postroom.domain.clock import ManualClock
from postroom.domain.roles import Role
from tests.support.dashboards import Site, log_in, open_site

pytestmark = pytest.mark.req("PL-7")

OLD, NEW = "correct horse battery staple", "  another horse, another staple "


async def with_phrase(site: Site) -> None:
    made = await passphrase.PassphraseHasher().make(OLD)
    own = (await site.api("GET", "/settings")).json()["sessions"][0]["id"]
    await site.write(lambda tx: passphrase.set_hash(tx, made, SYSTEM, site.app.clock.now(), but=own))


async def change(site: Site, current: str = OLD, new: str = NEW, again: str | None = None) -> httpx2.Response:
    return await site.post("/settings/passphrase", current=current, passphrase=new, repeated=again or new)


async def opens(site: Site, phrase: str) -> bool:
    async with site.stranger() as person:
        return (await person.post("/login", data={"passphrase": phrase})).status_code == 303


async def test_it_is_changed_audited_and_ends_every_other_login(site: Site) -> None:
    await with_phrase(site)
    other = await log_in(site.app)
    assert (await change(site)).status_code == 303
    page = await site.get("/settings")
    assert "The passphrase is changed, and 1 other login ended." in page.text
    async with site.stranger(cookies={next(iter(site.cookie)): other}) as out:
        assert (await out.get("/api/queue")).status_code == 401
    assert await opens(site, NEW)
    assert not await opens(site, OLD)
    which = AuditFilter(action="dashboard.passphrase")
    newest = (await site.read(lambda tx: list_entries(tx, which))).entries[0]
    assert (newest.actor.name, newest.after) == ("owner", {"logins_ended": 1})
    assert OLD not in page.text


async def test_a_refusal_stands_beside_its_field_and_changes_nothing(site: Site) -> None:
    await with_phrase(site)
    other = await log_in(site.app)
    for answer, field in (
        (await change(site, current="wrong wrong wrong"), "current"),
        (await change(site, new="short"), "passphrase"),
        (await change(site, again="not the same at all"), "repeated"),
    ):
        assert answer.status_code == 422
        assert f'id="e-{field}"' in answer.text
        assert OLD not in answer.text
    async with site.stranger(cookies={next(iter(site.cookie)): other}) as still_in:
        assert (await still_in.get("/api/queue")).status_code == 200
    assert await opens(site, OLD)


async def test_guessing_it_here_is_as_slow_as_at_the_login(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_site(tmp_path / "home", clock=clock) as site:
        await with_phrase(site)
        for n in range(FROM_AN_ADDRESS):
            assert (await change(site, current=f"wrong guess {n}")).status_code == 422
        assert (await change(site)).status_code == 429
        api = await site.api("POST", "/settings/passphrase", json={"current": OLD, "passphrase": NEW})
        assert (api.status_code, int(api.headers["retry-after"]) > 0) == (429, True)
        assert not await opens(site, OLD)
        clock.advance(WINDOW.total_seconds())
        assert (await change(site)).status_code == 303


async def test_a_program_needs_the_passphrase_too(site: Site) -> None:
    await with_phrase(site)
    token = await site.token(Role.DASHBOARD)
    async with site.stranger(headers={"authorization": f"Bearer {token}"}) as program:
        wrong = await program.post("/api/settings/passphrase", json={"current": NEW, "passphrase": NEW})
        assert (wrong.status_code, wrong.json()["error"]["field"]) == (422, "current")
        right = await program.post("/api/settings/passphrase", json={"current": OLD, "passphrase": NEW})
        assert right.json() == {"logins_ended": 1, "tokens_revoked": 0}
    assert (await site.get("/api/queue")).status_code == 401


async def test_a_login_with_the_old_one_does_not_slip_in_while_it_is_changed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await with_phrase(site)
    other, matches = await passphrase.PassphraseHasher().make(NEW), passphrase.PassphraseHasher.matches

    async def changed_meanwhile(hashing: passphrase.PassphraseHasher, offered: str, stored: str) -> bool:
        is_right = await matches(hashing, offered, stored)
        await site.write(lambda tx: passphrase.set_hash(tx, other, SYSTEM, site.app.clock.now()))
        return is_right

    monkeypatch.setattr(passphrase.PassphraseHasher, "matches", changed_meanwhile)
    assert not await opens(site, OLD)
