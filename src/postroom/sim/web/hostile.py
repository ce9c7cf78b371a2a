"""What web sites do wrong, by accident or on purpose, each under a path of its own."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import AsyncIterator, Callable
from functools import cache

from postroom.domain.clock import Clock
from postroom.sim.web.gazette import XML, SiteReply, assemble, html

_MB = 1024 * 1024
_GZIPPED = (("Content-Encoding", "gzip"),)
_ENTITIES = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">\n' for n in range(1, 10))


@cache
def _bomb(megabytes: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = b"\0" * _MB
    return b"".join(packer.compress(block) for _ in range(megabytes)) + packer.flush()


def _gzip_bomb() -> SiteReply:
    return SiteReply(body=_bomb(60), headers=_GZIPPED)


def _nested_bomb() -> SiteReply:
    return SiteReply(body=gzip.compress(_bomb(60), 9), headers=(("Content-Encoding", "gzip, gzip"),))


def _many_members() -> SiteReply:
    return SiteReply(body=gzip.compress(b"") * 100_000, headers=_GZIPPED)


def _sitemap_bomb() -> SiteReply:
    return SiteReply(body=_bomb(60), content_type="application/gzip")


def _entities() -> SiteReply:
    doctype = f'<!DOCTYPE urlset [<!ENTITY l0 "lol">\n{_ENTITIES}]>'
    body = f'<?xml version="1.0"?>\n{doctype}\n<urlset><url><loc>http://x/&l9;</loc></url></urlset>'
    return SiteReply(body=body.encode(), content_type=XML)


def _external_entity() -> SiteReply:
    doctype = '<!DOCTYPE urlset [<!ENTITY secret SYSTEM "file:///etc/hostname">]>'
    body = f'<?xml version="1.0"?>\n{doctype}\n<urlset><url><loc>http://x/&secret;</loc></url></urlset>'
    return SiteReply(body=body.encode(), content_type=XML)


def _long_line() -> SiteReply:
    return html("Dugačak redak", f"<article><h1>Dugačak redak</h1><p>{'porez ' * (10 * _MB // 6)}</p></article>")


def _deep() -> SiteReply:
    return SiteReply(body=b"<html><body>" + b"<div>" * 200_000 + b"porez" + b"</div>" * 200_000)


def _wrong_charset() -> SiteReply:
    page = "<html><head><title>Članak</title></head><body><p>Šuma, žaba, čaša i đak.</p></body></html>"
    return SiteReply(body=page.encode("cp1250"), content_type="text/html; charset=utf-8")


def _unknown_charset() -> SiteReply:
    return SiteReply(
        body="<html><body><p>Porez i žaba</p></body></html>".encode(), content_type="text/html; charset=x-klingon"
    )


def _pdf_as_html() -> SiteReply:
    return SiteReply(body=b"%PDF-1.4\nthis is no PDF at all\n%%EOF", content_type="text/html")


def _picture() -> SiteReply:
    return SiteReply(body=b"\x89PNG\r\n\x1a\n" + b"\0" * 500, content_type="image/png")


def _truncated() -> SiteReply:
    return SiteReply(body=b"<html><body><p>half a page", announced_length=10_000)


def _truncated_gzip() -> SiteReply:
    return SiteReply(body=gzip.compress(b"<p>porez</p>" * 1_000)[:-20], headers=_GZIPPED)


def _unknown_encoding() -> SiteReply:
    return SiteReply(body=b"whatever", headers=(("Content-Encoding", "br"),))


def _damaged_gzip() -> SiteReply:
    return SiteReply(body=b"not gzip at all", headers=_GZIPPED)


def _huge_header() -> SiteReply:
    return SiteReply(body=b"x", headers=(("X-Long", "a" * 200_000),))


def _lying_length() -> SiteReply:
    return SiteReply(body=b"x", announced_length=10**12)


def _hungry_pdf() -> SiteReply:
    return SiteReply(body=_packed_pdf(), content_type="application/pdf")


@cache
def _packed_pdf() -> bytes:
    """A few kilobytes whose page a reader must unpack to millions of operations."""
    content = zlib.compress(b"BT /F1 9 Tf " + b"(porez) Tj " * 3_000_000 + b"ET")
    return assemble(
        [
            b"<< /Type /Catalog /Pages 2 0 R >>",
            b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents 5 0 R "
            b"/Resources << /Font << /F1 6 0 R >> >> >>",
            b"<< /Title (Hungry) >>",
            b"<< /Filter /FlateDecode /Length %d >>\nstream\n%b\nendstream" % (len(content), content),
            b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
        ]
    )


HOSTILE: dict[str, Callable[[], SiteReply]] = {
    "/bombs/gzip": _gzip_bomb,
    "/bombs/nested": _nested_bomb,
    "/bombs/members": _many_members,
    "/bombs/sitemap.xml.gz": _sitemap_bomb,
    "/bombs/entities.xml": _entities,
    "/bombs/external.xml": _external_entity,
    "/bombs/long-line": _long_line,
    "/bombs/deep": _deep,
    "/bombs/hungry.pdf": _hungry_pdf,
    "/odd/charset": _wrong_charset,
    "/odd/unknown-charset": _unknown_charset,
    "/odd/pdf-as-html": _pdf_as_html,
    "/odd/picture": _picture,
    "/broken/truncated": _truncated,
    "/broken/truncated-gzip": _truncated_gzip,
    "/broken/encoding": _unknown_encoding,
    "/broken/gzip": _damaged_gzip,
    "/broken/header": _huge_header,
    "/broken/length": _lying_length,
}


async def endless_body() -> AsyncIterator[bytes]:
    while True:
        yield b"<p>porez</p>" * 1_000


async def slow_body(seconds: float, clock: Clock) -> AsyncIterator[bytes]:
    """Sends a few bytes now and then, so that no pause is long."""
    yield b"<html><body><p>"
    for _ in range(int(seconds / 0.05)):
        await clock.sleep(0.05)
        yield b"."
    yield b"</p></body></html>"
