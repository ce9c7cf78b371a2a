"""Mail's HTML as it may be shown: sanitised, in a document of its own that may load nothing and run nothing."""

from __future__ import annotations

from dataclasses import dataclass

import nh3

from postroom.dashboard.showing.links import Link
from postroom.dashboard.showing.markup import ATTRIBUTES, TAGS, Rewriting
from postroom.dashboard.wording import clean

SANDBOX = "allow-popups allow-popups-to-escape-sandbox"
"""No script, no form, no origin; a link that is clicked opens beside it, as a page that knows nothing of ours."""

FRAME_POLICY = "; ".join(
    (
        "default-src 'none'",
        "style-src 'unsafe-inline'",
        "form-action 'none'",
        "frame-ancestors 'self'",
        "base-uri 'none'",
        f"sandbox {SANDBOX}",
    )
)
"""Of the document alone. It holds too where somebody opens it outside of its frame."""

_STYLES = (
    "background background-color border border-bottom border-collapse border-color border-left border-radius "
    "border-right border-spacing border-style border-top border-width color display font font-family font-size "
    "font-style font-weight letter-spacing line-height list-style-type margin margin-bottom margin-left margin-right "
    "margin-top max-width min-width padding padding-bottom padding-left padding-right padding-top text-align "
    "text-decoration text-indent text-transform vertical-align white-space width word-break"
)
_CLEANER = nh3.Cleaner(
    tags=set(TAGS),
    attributes={"*": set(ATTRIBUTES), "a": {"href", "title"}},
    url_schemes={"http", "https", "mailto"},
    url_relative="deny",
    link_rel="noopener noreferrer",
    set_tag_attribute_values={"a": {"target": "_blank"}},
    filter_style_properties=set(_STYLES.split()),
)
_STYLE = (
    ":root{color-scheme:light}"
    "body{margin:0;padding:12px 16px;background:#fff;color:#17202a;font:15px/1.5 system-ui,sans-serif;"
    "overflow-wrap:anywhere}"
    "a{color:#1a56b0}table{max-width:100%}pre{white-space:pre-wrap}"
    "blockquote{margin:0 0 0 8px;padding-left:12px;border-left:3px solid #d5dbe2}"
)


@dataclass(frozen=True, slots=True)
class SafeHtml:
    html: str
    """Sanitised: without script, without forms, without anything that is loaded."""
    remote_images: int
    """Pictures left out that would have been fetched from the web, which tells the sender that the mail was read."""
    attached_images: int
    """Pictures left out that came with the message."""
    links: tuple[Link, ...]
    is_cut: bool
    """There was more of it than is shown."""

    @property
    def posing(self) -> tuple[Link, ...]:
        return tuple(link for link in self.links if link.poses_as)


def safe_html(markup: str) -> SafeHtml:
    rewriting = Rewriting()
    # Marks that turn the direction of writing can be written as entities: they are taken from what comes out.
    html = clean(_CLEANER.clean(rewriting.rewrite(markup.encode("utf-8", "replace").decode())))
    return SafeHtml(html, rewriting.remote_images, rewriting.attached_images, tuple(rewriting.links), rewriting.is_cut)


def frame_document(safe: SafeHtml) -> str:
    return (
        '<!doctype html><html lang=""><head><meta charset="utf-8"><title>The message</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
        f"<body>{safe.html}</body></html>"
    )
