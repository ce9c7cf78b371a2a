"""Files dropped on the archive page: taken in, recognised by what they hold, imported, and removed; or refused."""

from __future__ import annotations

import asyncio
import tarfile
import zipfile
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx2
import pytest

from postroom.app import archive_runner
from postroom.app.archive_tasks import TaskKind, TaskState, add_task, home_id
from postroom.audit import SYSTEM
from postroom.domain.ids import new_id
from postroom.domain.roles import Permission, Role
from postroom.settings import ArchiveSettings, DashboardSettings
from tests.support.archives import ME, plain_letter
from tests.support.dashboards import Site, open_site, text_of
from tests.support.mail import write_mbox
from tests.support.switchboards import in_a_task

pytestmark = pytest.mark.req("SY-16")

MOST = 2_000_000


@pytest.fixture
async def site(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    """On PostgreSQL the archive is there too."""
    monkeypatch.setattr(archive_runner, "_LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(archive_runner, "_REPORT_EVERY_S", 0.02)
    store = "database" if database_url.startswith("postgresql") else "files"
    limits, place = DashboardSettings(upload_bytes=MOST), ArchiveSettings.model_validate({"store": store})
    async with in_a_task(open_site(tmp_path / "home", database_url, archive=place, dashboard=limits)) as opened:
        yield opened


def letter(body: str) -> bytes:
    return plain_letter(body, message_id=f"<{body}@example.org>")


def zip_of(**members: bytes) -> bytes:
    data = BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as package:
        for name, content in members.items():
            package.writestr(f"../{name}.eml", content)
    return data.getvalue()


def tar_of(mode: str, **members: bytes) -> bytes:
    data = BytesIO()
    with tarfile.open(fileobj=data, mode=mode) as package:  # type: ignore[call-overload]
        for name, content in members.items():
            member = tarfile.TarInfo(f"../{name}.eml")
            member.size = len(content)
            package.addfile(member, BytesIO(content))
    return data.getvalue()


async def upload(site: Site, *files: tuple[str, bytes], account: str = ME, csrf: str | None = None) -> httpx2.Response:
    fields = {"csrf": site.csrf if csrf is None else csrf, "account": account}
    return await site.http.post(
        "/archive/upload",
        data=fields,
        files=[("files", (name, content, "application/octet-stream")) for name, content in files],
        headers={"sec-fetch-site": "same-origin"},
    )


async def imports(site: Site) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await site.api("GET", "/archive/imports")).json()["imports"]
    return found


async def all_over(site: Site) -> list[dict[str, Any]]:
    while any(each["state"] in ("queued", "running") for each in await imports(site)):
        await asyncio.sleep(0.02)
    return await imports(site)


def left_in(site: Site) -> list[Path]:
    return sorted((site.app.settings.home / "uploads").glob("*"))


async def test_files_of_every_kind_are_imported_and_then_removed(site: Site, tmp_path: Path) -> None:
    write_mbox(tmp_path / "m", [letter("one"), letter("two")])
    files = [
        ("Posteingang ü.dat", (tmp_path / "m").read_bytes()),
        ("letter.txt", letter("three")),
        ("pack.bin", zip_of(a=letter("four"), b=letter("five"), c=letter("one"))),
        ("takeout-1.tgz", tar_of("w:gz", a=letter("six"), b=letter("one"), c=b"Shopping: milk")),
        ("takeout-2.tar", tar_of("w", a=letter("seven"))),
    ]
    answer = await upload(site, *files)
    assert (answer.status_code, answer.headers["location"]) == (303, "/archive#imports")
    done = await all_over(site)
    assert sorted((each["name"], each["state"], each["stored"], each["duplicates"]) for each in done) == [
        ("Posteingang ü.dat", "completed", 2, 0),
        ("letter.txt", "completed", 1, 0),
        ("pack.bin", "completed", 2, 1),
        ("takeout-1.tgz", "completed", 1, 1),
        ("takeout-2.tar", "completed", 1, 0),
    ]
    assert left_in(site) == []
    with site.app.archive.backend.reader() as reader:
        assert reader.count(ME) == 7
    page = text_of((await site.get("/archive")).text)
    assert "Importing 5 files." in page
    assert "1 skipped as not mail" in page
    assert "Posteingang ü.dat" in page
    for each in done:
        assert (await site.post(f"/archive/imports/{each['id']}/forget")).status_code == 303
    assert await imports(site) == []


async def test_what_is_refused_leaves_nothing_behind(site: Site) -> None:
    for answer, status, words in (
        (await upload(site, ("a.eml", letter("a")), csrf="forged"), 403, "did not come from a page"),
        (await upload(site, ("a.eml", letter("a")), account="nobody"), 422, "is not an e-mail address"),
        (await upload(site, ("photo.eml", b"\x89PNG\r\n\x1a\n" + bytes(900))), 422, "photo.eml is not mail"),
        (await upload(site, ("a.tgz", b"\x1f\x8b" + bytes(900))), 422, "a.tgz is not mail"),
        (await upload(site, ("large.eml", letter("x" * MOST))), 422, "larger than 2,000,000 bytes"),
        (await upload(site), 422, ""),
        (await site.http.post("/archive/upload", content=b"--x", headers=_multipart("x", site)), 422, ""),
        (await site.http.post("/archive/upload", content=b"{}", headers={"x-csrf-token": site.csrf}), 422, ""),
    ):
        assert (answer.status_code, words in text_of(answer.text)) == (status, True), text_of(answer.text)
    async with site.stranger() as stranger:
        assert (await stranger.post("/archive/upload", files={"files": ("a.eml", letter("a"))})).status_code in (
            303,
            401,
        )
    assert left_in(site) == []
    assert await imports(site) == []
    assert (await site.get("/archive/upload")).status_code == 303


def _multipart(boundary: str, site: Site) -> dict[str, str]:
    return {"content-type": f"multipart/form-data; boundary={boundary}", "x-csrf-token": site.csrf}


async def test_an_import_is_stopped_resumed_and_removed_with_its_file_by_those_who_may(site: Site) -> None:
    """It fails, because its file says that it is a package and is none; the file stays until it is given up."""
    await upload(site, ("broken.zip", b"PK\x03\x04" + bytes(500)))
    [broken] = await all_over(site)
    assert (broken["state"], "is damaged or cut off" in broken["error"]) == ("failed", True)
    assert len(left_in(site)) == 1
    path = f"/archive/imports/{broken['id']}"
    reading = await site.token(Role.DASHBOARD, permissions=frozenset({Permission.READ}))
    agent = await site.token(Role.AGENT)
    for token in (reading, agent):
        async with site.stranger(headers={"authorization": f"Bearer {token}"}) as program:
            assert (await program.post(f"/api{path}/forget")).status_code == 403
    assert (await site.api("POST", f"{path}/stop")).status_code == 422
    assert (await site.api("POST", f"{path}/resume")).json()["state"] == "queued"
    assert [each["state"] for each in await all_over(site)] == ["failed"]
    assert (await site.api("POST", f"{path}/forget")).status_code == 200
    assert (left_in(site), await imports(site)) == ([], [])
    assert (await site.api("POST", f"/archive/imports/{new_id()}/stop")).status_code == 404


async def test_no_order_in_the_database_makes_postroom_remove_another_file(site: Site, tmp_path: Path) -> None:
    precious = tmp_path / "precious.eml"
    precious.write_bytes(letter("precious"))
    name, now = home_id(site.app.settings.home), site.app.clock.now()
    order = {"format": "eml", "path": str(precious), "account": ME, "keep_quotes": False, "uploaded_as": "x"}
    await site.write(lambda tx: add_task(tx, name, TaskKind.IMPORT, order, SYSTEM, now))
    [done] = await all_over(site)
    assert (done["state"], "was not removed" in done["error"]) == (TaskState.FAILED, True)
    assert precious.exists()
