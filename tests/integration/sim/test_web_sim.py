"""The stand-in web site, as a process and as a site."""

from __future__ import annotations

import gzip
from pathlib import Path

import httpx2

from postroom.sim.web.server import running_site
from tests.support.commands import PostroomProcess


async def test_the_command_serves_and_can_be_controlled(tmp_path: Path) -> None:
    process = PostroomProcess("sim", "site", "--documents", "30", home=tmp_path)
    await process.start()
    try:
        ready = await process.ready()
        control = {"x-sim-control": ready["control_token"]}
        async with httpx2.AsyncClient(base_url=ready["url"], trust_env=False) as client:
            assert (await client.get("/documents/1")).status_code == 200
            assert (await client.get("/_sim/requests")).status_code == 401
            await client.post(
                "/_sim/faults", headers=control, json={"path": "/about", "status": 429, "retry_after": "7"}
            )
            refused = await client.get("/about")
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "7")
            assert (await client.post("/_sim/faults", headers=control, json={"nonsense": 1})).status_code == 400
            log = (await client.get("/_sim/requests", headers=control)).json()
        assert [visit["path"] for visit in log["requests"]] == ["/documents/1", "/about"]
        assert log["requests"][0]["ended"] >= log["requests"][0]["began"]
        code, _ = await process.end()
        assert code == 0
    finally:
        await process.kill()


async def test_all_ways_lead_to_the_same_documents() -> None:
    async with running_site(60, seed=4) as sim, httpx2.AsyncClient(base_url=sim.url, trust_env=False) as client:
        documents = {document.path for document in sim.site.gazette.documents}
        years = sim.site.gazette.years
        assert len(years) > 2
        index = (await client.get("/sitemaps/index.xml")).text
        mapped, listed, archived = set(), set(), set()
        for year in years:
            suffix = ".xml.gz" if year % 2 else ".xml"
            assert f"/sitemaps/{year}{suffix}" in index
            body = (await client.get(f"/sitemaps/{year}{suffix}")).content
            text = (gzip.decompress(body) if year % 2 else body).decode()
            mapped |= {path for path in documents if f"{path}</loc>" in text}
            archive = (await client.get(f"/archive/{year}/")).text
            archived |= {path for path in documents if f'"{path}"' in archive}
        for page in (1, 2, 3):
            text = (await client.get(f"/news?page={page}")).text
            listed |= {path for path in documents if f'"{path}"' in text}
        assert mapped == listed == archived == documents
        assert 'rel="next"' not in text
        assert 'href="/news-loop?page=2"' in (await client.get("/news-loop?page=3")).text
