"""The dashboard as an app: its manifest and icons, for strangers too, under the same strict policy."""

from __future__ import annotations

import struct

import pytest

from tests.support.dashboards import Site


@pytest.mark.req("UX-1")
async def test_the_manifest_and_every_icon_in_it_are_served_without_a_login(site: Site) -> None:
    page = await site.get("/")
    assert '<link rel="manifest" href="/manifest.webmanifest">' in page.text
    assert "manifest-src 'self'" in page.headers["content-security-policy"]
    async with site.stranger() as stranger:
        answer = await stranger.get("/manifest.webmanifest")
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/manifest+json")
        said = answer.json()
        assert (said["display"], said["start_url"], said["scope"]) == ("standalone", "/", "/")
        for icon in said["icons"]:
            drawn = await stranger.get(icon["src"])
            assert (drawn.status_code, drawn.headers["content-type"]) == (200, "image/png")
            width, height = struct.unpack(">II", drawn.content[16:24])
            assert icon["sizes"] == f"{width}x{height}"
        assert {icon["purpose"] for icon in said["icons"]} == {"any", "maskable"}
        assert (await stranger.get("/static/icons/none.png")).status_code == 404
