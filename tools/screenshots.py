"""Small pictures of the dashboard for the documentation: `make screenshots` writes docs/screenshots/*.png.

The pages, the day and the clock are always the same, so a picture changes only where a page does. The browser reduces
each picture to at most 256 colours, which is all that such pages need: those that are most used and look different.
"""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import struct
import sys
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page, async_playwright
from tests.support.backfills import BACKFILL_ON
from tests.support.browser import open_window
from tests.support.dashboards import Site, open_site
from tests.support.furnished_dashboards import GoodDay, good_day, morning_clock

from postroom.dashboard.display.rendering import sections

FOLDER = Path(__file__).parent.parent / "docs" / "screenshots"
LARGEST = 60_000
_DESKTOP = {"width": 1_100, "height": 720}
_PHONE = {"width": 390, "height": 760}

_REDUCE = """async (data) => {
  const image = new Image();
  image.src = "data:image/png;base64," + data;
  await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height);
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const pixels = context.getImageData(0, 0, image.width, image.height).data;
  const counts = new Map();
  const colour = (at) => (pixels[at] << 16) | (pixels[at + 1] << 8) | pixels[at + 2];
  for (let at = 0; at < pixels.length; at += 4) counts.set(colour(at), (counts.get(colour(at)) ?? 0) + 1);
  const far = (a, b) =>
    ((a >> 16) - (b >> 16)) ** 2 + (((a >> 8) & 255) - ((b >> 8) & 255)) ** 2 + ((a & 255) - (b & 255)) ** 2;
  const palette = [];
  for (const [found] of [...counts].sort((a, b) => b[1] - a[1] || a[0] - b[0]))
    if (palette.length < 256 && palette.every((kept) => far(kept, found) > 60)) palette.push(found);
  const nearest = new Map(palette.map((found, place) => [found, place]));
  for (const found of counts.keys()) {
    if (nearest.has(found)) continue;
    let best = 0;
    for (let place = 1; place < palette.length; place++)
      if (far(found, palette[place]) < far(found, palette[best])) best = place;
    nearest.set(found, best);
  }
  let places = "";
  for (let at = 0; at < pixels.length; at += 4) places += String.fromCharCode(nearest.get(colour(at)));
  return { width: image.width, height: image.height, palette, places: btoa(places) };
}"""


@dataclass(frozen=True)
class Shot:
    name: str
    path: str
    view: dict[str, Any]
    scheme: str = "light"


def shots(day: GoodDay) -> list[Shot]:
    compared = f"/web/evidence/{day.evidence}/compare/{day.before}"
    taken = [
        Shot("overview", "/", _DESKTOP),
        Shot("overview-dark", "/", _DESKTOP, "dark"),
        Shot("overview-phone", "/", _PHONE),
        Shot("mail", "/mail", _DESKTOP),
        Shot("message", f"/mail/me@example.org/{day.message}", _DESKTOP),
        Shot("backfill", f"/backfill/{day.job}", _DESKTOP),
        Shot("approvals", "/approvals", _DESKTOP),
        Shot("rules", "/rules", _DESKTOP),
        Shot("archive", "/archive", _DESKTOP),
        Shot("web", compared, _DESKTOP),
    ]
    known = {section.key for section in sections()}
    return [shot for shot in taken if shot.name != "rules" or "rules" in known]


async def take(browser: Browser, site: Site, shot: Shot) -> bytes:
    async with open_window(browser, site, viewport=shot.view, color_scheme=shot.scheme) as window:
        page = await window.open(shot.path)
        await page.evaluate("document.fonts.ready")
        return await page.screenshot(animations="disabled")


async def reduced(page: Page, png: bytes) -> bytes:
    reduced = await page.evaluate(_REDUCE, base64.b64encode(png).decode())
    return _png(reduced["width"], reduced["height"], reduced["palette"], base64.b64decode(reduced["places"]))


def _png(width: int, height: int, palette: list[int], places: bytes) -> bytes:
    rows = b"".join(b"\0" + places[start : start + width] for start in range(0, width * height, width))
    colours = b"".join(colour.to_bytes(3, "big") for colour in palette)
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"PLTE", colours), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


async def write_all(folder: Path) -> None:
    chromium = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        async with (
            open_site(Path(home), clock=morning_clock(), **BACKFILL_ON) as site,
            async_playwright() as playwright,
        ):
            browser = await playwright.chromium.launch(executable_path=chromium, args=sandbox)
            workbench = await browser.new_page()
            day = await good_day(site)
            await site.post("/checklist", step="checklist", shown="no")  # it is not the first day
            await site.get("/")  # which says that the list is gone, once
            for shot in shots(day):
                picture = await reduced(workbench, await take(browser, site, shot))
                if len(picture) > LARGEST:
                    sys.exit(f"{shot.name}.png has {len(picture):,} bytes; the most is {LARGEST:,}")
                (folder / f"{shot.name}.png").write_bytes(picture)
                print(f"{shot.name}.png  {len(picture):,} bytes")
            await browser.close()


if __name__ == "__main__":
    asyncio.run(write_all(FOLDER))
