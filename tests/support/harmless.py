"""What in a page of ours, or in a frame with mail, would run, load or lead astray."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import TypeVar
from urllib.parse import urlsplit

DIRECTION = re.compile(r"[\x00\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_LOCAL = ("/", "?", "#")
_OPENS = ("http", "https", "mailto")
_OURS = frozenset({"/static/live.js"})
_RUNS_OR_LOADS = frozenset(
    {"script", "style", "svg", "math", "object", "embed", "base", "applet", "video", "audio", "source", "img", "image"}
    | {"iframe", "frame", "link", "meta", "form", "input", "button", "textarea", "select", "template", "noscript"}
)


R = TypeVar("R", bound="_Reader")


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.harms: list[str] = []
        self.frames: list[dict[str, str]] = []
        self.in_body = False
        self.depth = self.deepest = 0

    def say(self, what: str) -> None:
        self.harms.append(what[:300])

    def attributes(self, tag: str, given: list[tuple[str, str | None]]) -> dict[str, str]:
        for name, _ in given:
            if name.startswith("on"):
                self.say(f"<{tag} {name}>")
        return {name: value or "" for name, value in given}

    def link(self, tag: str, found: dict[str, str]) -> None:
        """Where it leads: within the dashboard, or elsewhere in a window that knows nothing of this one."""
        href = found.get("href")
        if href is None or (href.startswith(_LOCAL) and not href.startswith("//")):
            return
        if urlsplit(href).scheme not in _OPENS:
            self.say(f"<{tag} href={href!r}>")
        elif (found.get("rel"), found.get("target")) != ("noopener noreferrer", "_blank"):
            self.say(f"<{tag} href={href!r}> opens with {found}")


class PageReader(_Reader):
    """A page of the dashboard: our own tags may stand in it, with our own addresses only."""

    def handle_starttag(self, tag: str, given: list[tuple[str, str | None]]) -> None:
        found = self.attributes(tag, given)
        if tag in ("style", "svg", "math", "object", "embed", "base", "template") or "style" in found:
            self.say(f"<{tag} {found}>")
        if tag == "script" and urlsplit(found.get("src", "")).path not in _OURS:
            self.say(f"<script {found}>")
        for name in ("src", "action", "srcset", "formaction", "poster", "background", "data"):
            if name in found and (not found[name].startswith("/") or found[name].startswith("//")):
                self.say(f"<{tag} {name}={found[name]!r}>")
        if tag == "iframe":
            self.frames.append(found)
        if tag == "a":
            self.link(tag, found)


class FrameReader(_Reader):
    """The document with a message: nothing in its body but words, tables and links."""

    def handle_starttag(self, tag: str, given: list[tuple[str, str | None]]) -> None:
        found = self.attributes(tag, given)
        if tag == "body":
            self.in_body = True
        elif self.in_body:
            self.depth += tag not in ("br", "hr", "col")
            self.deepest = max(self.deepest, self.depth)
            self._check(tag, found)

    def handle_endtag(self, tag: str) -> None:
        self.depth -= 1

    def _check(self, tag: str, found: dict[str, str]) -> None:
        if tag in _RUNS_OR_LOADS:
            self.say(f"<{tag} {found}>")
        if found.keys() & {"src", "id", "name", "class", "background", "srcset", "action", "ping"}:
            self.say(f"<{tag} {found}>")
        if re.search(r"url|expression|position|image|import|\\", found.get("style", ""), re.IGNORECASE):
            self.say(f"<{tag} style={found['style']!r}>")
        if tag == "a":
            if found.get("href", "").startswith(_LOCAL):
                self.say(f"a link into the dashboard: {found}")
            self.link(tag, found)


def read_page(html: str) -> PageReader:
    return _read(PageReader(), html)


def read_frame(html: str) -> FrameReader:
    return _read(FrameReader(), html)


def _read(reader: R, html: str) -> R:
    reader.feed(html)
    reader.close()
    if DIRECTION.search(html):
        reader.say("a mark that turns the direction of writing, or a NUL")
    return reader
