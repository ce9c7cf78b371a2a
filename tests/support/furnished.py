"""A post room in which every page has something to show, all of it said by somebody else: in the words given.

`known` has values for the parameters of addresses, so that whoever walks all routes finds what they lead to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from email.header import Header

from fastapi.routing import iter_route_contexts

from postroom.archive.model import IncomingMail, Provenance
from postroom.domain.roles import Role
from postroom.domain.tiers import Tier
from postroom.sync.state import record_bad
from tests.dashboard.test_approvals_page import ask
from tests.support import dashboard_scene as scene
from tests.support import web_scene as web
from tests.support.dashboards import Site, log_in
from tests.support.envelopes import ME
from tests.support.histories import add_history, make_job
from tests.support.mail_sites import judge, keep

KEY = "18f0000000000099"
_NO_PAGES = ("/api/", "/static/", "/live", "/login", "/welcome")
_FILES = ("/raw", "/body", "/attachments/{number}")
_NEEDED = {"/archive/bad": f"?account={ME}", "/archive/certificates": f"?account={ME}"}


@dataclass(frozen=True)
class Furnished:
    site: Site
    known: dict[str, str] = field(default_factory=dict)

    def known_at(self, route: str) -> dict[str, str]:
        """Jobs of the queue and of backfill have different ids under one name."""
        if "/backfill" in route:
            return self.known | {"job_id": self.known["backfill_id"]}
        return self.known

    def paths(self) -> list[str]:
        """Every page whose parameters are known, from the routes, and some in their other states."""
        return [*self._from_routes(), *self._states()]

    def _from_routes(self) -> Iterator[str]:
        for context in iter_route_contexts(self.site.dashboard.pages.routes):
            route = re.sub(r":\w+}", "}", str(context.path))
            if "GET" not in (context.methods or ()) or route.startswith(_NO_PAGES) or route.endswith(_FILES):
                continue
            known = self.known_at(route)
            if set(re.findall(r"{(\w+)}", route)) <= known.keys():
                yield route.format_map(known) + _NEEDED.get(route, "")

    def _states(self) -> list[str]:
        message, evidence = f"/mail/{ME}/{KEY}", f"/web/evidence/{self.known['evidence_id']}"
        return [
            *(f"{message}?view=text", "/mail?query=a%20(", "/mail?query=in:anywhere", "/queue?state=failed"),
            *("/web/evidence?query=a%20(", f"{evidence}?view=page", f"{evidence}?view=source"),
            *(f"{evidence}/compare/{self.known['other_id']}?of=source", "/no/such/page"),
        ]


async def furnish(site: Site, said: str) -> Furnished:
    """Needs backfill to be on."""
    known = {"account": ME, "key": KEY, "number": "0", "connector_type": "gmail", "identity": ME}
    await _mail(site, said)
    known["action_id"] = await ask(site, said)
    known["job_id"] = (await scene.failed_jobs(site, 2, said))[0]
    known["backfill_id"] = await make_job(site)
    await scene.backfill_job(site, spent=1_000_000, status="error", error=said)
    await scene.model_call(site, 12_000, model=said)
    await _connectors(site, said)
    known |= await _web(site, said)
    await site.token(Role.AGENT)
    await log_in(site.app, said)
    settings = (await site.api("GET", "/settings")).json()
    known["token_id"] = settings["tokens"][0]["id"]
    known["session_id"] = next(each["id"] for each in settings["sessions"] if each["client"].startswith(said[:20]))
    return Furnished(site, known)


async def _mail(site: Site, said: str) -> None:
    account = await add_history(site)
    now = site.app.clock.now()
    word = Header(said, "utf-8", maxlinelen=10_000).encode()
    head = f"From: {word} <eve@example.org>\r\nTo: {word} <{ME}>\r\nSubject: {word}\r\nX-Said: {word}\r\n"
    parts = f"\r\n--b\r\nContent-Type: text/html; charset=utf-8\r\n\r\n<p>{said}</p>\r\n--b\r\n"
    file = f"Content-Type: text/plain\r\nContent-Disposition: attachment; filename*=utf-8''{word}.txt\r\n\r\n{said}\r\n"
    raw = f"{head}Content-Type: multipart/mixed; boundary=b\r\n{parts}{file}--b--\r\n".encode()
    labels = frozenset({"INBOX", "UNREAD", said})
    await keep(site, [IncomingMail(raw, Provenance.API, KEY, "t1", labels, now)])
    await scene.mail(site, {Tier.HIGH_PRIORITY: 2, Tier.DEFAULT: 3}, assignment_rule=said, account_id=account)
    await judge(site, KEY, action="archive", needs_review=True, reason=said)
    await site.write(lambda tx: record_bad(tx, account, "18c1", said, 1, now))


async def _connectors(site: Site, said: str) -> None:
    await scene.heartbeat(site, status=said, instance=said, checkpoint={said: said, "contacts": said})
    await scene.heartbeat(site, said, ago=timedelta(hours=2))
    await scene.contact_book(site, site.app.clock.now())


async def _web(site: Site, said: str) -> dict[str, str]:
    web.follow(site)
    await web.items(site, {"FETCHED": 3, "FAILED": 2}, error=said)
    await web.looked(site, said)
    run = await web.make_run(site)
    await web.start_run(site, run.id, found=7)
    await web.fail_run(site, run.id, said, (f"{web.SITE}/{said}", said))
    old = await web.kept(site, f"<p>{said}</p>", said, title=said, path=f"/{said}", age=timedelta(days=9))
    new = await web.kept(site, f"<p>{said}, anew</p>", f"{said}\n{said} anew", title=said, path=f"/{said}")
    return {"run_id": run.id, "evidence_id": new, "other_id": old}
