"""Plain text of mail as a page shows it: as it was written, with links that say where they lead."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

from postroom.dashboard.showing.links import LONGEST_URL, hides_its_host, host_of, safe_url
from postroom.dashboard.wording import clean

MOST_LINKS = 500
_URL = re.compile(
    rf"\b(?:https?://|mailto:)[^\s<>\"'\x00-\x20\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff\ufffd]{{3,{LONGEST_URL}}}"
)
_AFTER = ".,;:!?)]}*_"


def linked(text: str) -> Markup:
    """What was written, and nothing of it hidden: the text of a link is its address."""
    text = clean(text)
    out: list[Markup] = []
    position = 0
    for number, found in enumerate(_URL.finditer(text)):
        if number == MOST_LINKS:
            break
        shown = found[0].rstrip(_AFTER)
        url = safe_url(shown)
        if url is not None:
            out += [escape(text[position : found.start()]), _anchor(shown, url)]
            position = found.start() + len(shown)
    return Markup("").join([*out, escape(text[position:])])


def _anchor(shown: str, url: str) -> Markup:
    link = Markup('<a href="{}" rel="noopener noreferrer" target="_blank">{}</a>').format(url, shown)
    if not hides_its_host(url):
        return link
    return link + Markup(' <strong class="leads">[leads to {}]</strong>').format(clean(host_of(url)))
