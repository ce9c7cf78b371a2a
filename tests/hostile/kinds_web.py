"""Hostile web: what a followed site can answer with. HTML pages and lists are in `kinds_markup.py`."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from functools import partial

from postroom.sim.web.gazette import assemble
from tests.hostile.corpus import register

_NAMESPACE = b'xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"'


def _urlset(inner: bytes) -> bytes:
    return b'<?xml version="1.0"?><urlset ' + _NAMESPACE + b">" + inner + b"</urlset>"


_SITEMAPS: dict[str, Callable[[int], bytes]] = {
    "many": lambda n: _urlset(b"<url><loc>http://a.example/x</loc></url>" * n),
    "many-empty": lambda n: _urlset(b"<url/>" * n),
    "nested": lambda n: _urlset(b"<a>" * n),
    "nested-closed": lambda n: _urlset(b"<a>" * n + b"</a>" * n),
    "nested-in-loc": lambda n: _urlset(b"<url><loc>" + b"<b>" * n + b"</b>" * n + b"</loc></url>"),
    "siblings": lambda n: _urlset(b"<a/>" * n),
    "attributes": lambda n: _urlset(b"<url" + b"".join(b' a%d=""' % k for k in range(n)) + b"/>"),
    "attributes-same": lambda n: _urlset(b"<url" + b' a=""' * n + b"/>"),
    "namespaces": lambda n: _urlset(b"<url" + b"".join(b' xmlns:n%d="u%d"' % (k, k) for k in range(n)) + b"/>"),
    "names-distinct": lambda n: _urlset(b"".join(b"<n%d/>" % k for k in range(n))),
    "name-endless": lambda n: _urlset(b"<" + b"a" * n + b"/>"),
    "loc-endless": lambda n: _urlset(b"<url><loc>http://a.example/" + b"a" * n + b"</loc></url>"),
    "lastmod-endless": lambda n: _urlset(b"<url><loc>http://a</loc><lastmod>" + b"9" * n + b"</lastmod></url>"),
    "lastmod-odd": lambda n: _urlset(b"<url><loc>http://a</loc><lastmod>0000-13-99T99</lastmod></url>" * n),
    "lastmod-ends-of-time": lambda n: _urlset(
        b"<url><loc>http://a</loc><lastmod>0001-01-01T00:00:00+23:59</lastmod></url>"
        b"<url><loc>http://b</loc><lastmod>9999-12-31T23:59:59-23:59</lastmod></url>" * n
    ),
    "comments": lambda n: _urlset(b"<!--x-->" * n),
    "comment-open": lambda n: _urlset(b"<!--" + b"x" * n),
    "instructions": lambda n: _urlset(b"<?x y?>" * n),
    "cdata": lambda n: _urlset(b"<url><loc><![CDATA[http://a.example]]></loc></url>" * n),
    "references": lambda n: _urlset(b"<url><loc>" + b"&amp;" * n + b"</loc></url>"),
    "reference-digits": lambda n: _urlset(b"<url><loc>&#" + b"9" * n + b";</loc></url>"),
    "entity-laughs": lambda n: (
        b'<!DOCTYPE u [<!ENTITY a "b">' + b'<!ENTITY c "&a;&a;">' * n + b"]><urlset>&c;</urlset>"
    ),
    "entity-external": lambda n: (
        b'<!DOCTYPE u [<!ENTITY a SYSTEM "file:///etc/passwd">]><urlset>&a;</urlset>' + b" " * n
    ),
    "doctype-open": lambda n: b"<!DOCTYPE " + b"x" * n,
    "index-of-indexes": lambda n: (
        b"<sitemapindex>" + b"<sitemap><loc>http://a</loc></sitemap>" * n + b"</sitemapindex>"
    ),
    "text-lines": lambda n: b"http://a.example/x\n" * n,
    "text-one-line": lambda n: b"http://a.example/" + b"x" * n,
    "text-breaks": lambda n: "http://a.example\u2028\x85\x0b".encode() * n,
    "angles": lambda n: b"<" * n,
    "spaces": lambda n: b" " * n + _urlset(b""),
    "utf-16": lambda n: _urlset(b"<url><loc>http://a.example/x</loc></url>" * n).decode().encode("utf-16"),
    "encoding-unknown": lambda n: b'<?xml version="1.0" encoding="x-none"?><urlset>' + b"<url/>" * n + b"</urlset>",
    "encoding-lies": lambda n: b'<?xml version="1.0" encoding="utf-16"?><urlset>' + b"<url/>" * n + b"</urlset>",
    "declaration-endless": lambda n: b'<?xml version="' + b"1" * n + b'"?><urlset/>',
    "nuls": lambda n: _urlset(b"\0" * n),
    "empty": lambda n: b"",
    "feed-rss": lambda n: b"<rss><channel>" + b"<item><link>http://a</link></item>" * n + b"</channel></rss>",
    "feed-atom": lambda n: b"<feed>" + b"<entry><link href='http://a'/></entry>" * n + b"</feed>",
    "html-instead": lambda n: b"<!DOCTYPE html><html><body>" + b"<p>x</p>" * n,
    "json-instead": lambda n: b'{"urls":[' + b"1," * n + b"1]}",
}
register("sitemaps", ("sitemap",), _SITEMAPS)


def _rss(inner: bytes) -> bytes:
    return b'<?xml version="1.0"?><rss version="2.0"><channel>' + inner + b"</channel></rss>"


def _atom(inner: bytes) -> bytes:
    return b'<feed xmlns="http://www.w3.org/2005/Atom">' + inner + b"</feed>"


_FEEDS: dict[str, Callable[[int], bytes]] = {
    "rss-items": lambda n: _rss(b"<item><link>http://a.example/x</link></item>" * n),
    "rss-items-empty": lambda n: _rss(b"<item/>" * n),
    "rss-links-many": lambda n: _rss(b"<item>" + b"<link>http://a.example/x</link>" * n + b"</item>"),
    "rss-link-endless": lambda n: _rss(b"<item><link>http://a.example/" + b"a" * n + b"</link></item>"),
    "rss-guids-odd": lambda n: _rss(b'<item><guid isPermaLink="maybe">not an address</guid></item>' * n),
    "rss-dates-odd": lambda n: _rss(b"<item><link>http://a</link><pubDate>32 Foo -1 99:99 +9999</pubDate></item>" * n),
    "rss-date-endless": lambda n: _rss(b"<item><link>http://a</link><pubDate>" + b"9" * n + b"</pubDate></item>"),
    "rss-date-comments": lambda n: _rss(b"<item><link>http://a</link><pubDate>" + b"(" * n + b"</pubDate></item>"),
    "rss-nested": lambda n: _rss(b"<item>" * n),
    "rss-nested-closed": lambda n: _rss(b"<item>" * n + b"</item>" * n),
    "rss-channels": lambda n: b"<rss>" + b"<channel/>" * n + b"</rss>",
    "rss-title-endless": lambda n: _rss(b"<title>" + b"x" * n + b"</title>"),
    "rss-content": lambda n: _rss(b"<item><description><![CDATA[" + b"<p>" * n + b"]]></description></item>"),
    "rdf-items": lambda n: b"<RDF><channel/>" + b"<item><link>http://a</link></item>" * n + b"</RDF>",
    "atom-entries": lambda n: _atom(b"<entry><link href='http://a.example/x'/></entry>" * n),
    "atom-links-many": lambda n: _atom(b"<entry>" + b"<link href='http://a'/>" * n + b"</entry>"),
    "atom-next-many": lambda n: _atom(b"<link rel='next' href='http://a'/>" * n),
    "atom-next-of-itself": lambda n: _atom(b"<link rel='next' href=''/>" * n),
    "atom-relative": lambda n: _atom(b"<entry><link href='" + b"../" * n + b"x'/></entry>"),
    "atom-updated-odd": lambda n: _atom(b"<entry><link href='/x'/><updated>0000-00-00T99Z</updated></entry>" * n),
    "entity-laughs": lambda n: b'<!DOCTYPE r [<!ENTITY a "b">' + b'<!ENTITY c "&a;&a;">' * n + b"]><rss>&c;</rss>",
    "entity-external": lambda n: b'<!DOCTYPE r [<!ENTITY a SYSTEM "file:///etc/passwd">]><rss>&a;</rss>' + b" " * n,
    "entity-undefined": lambda n: _rss(b"<item><link>&nbsp;</link></item>" * n),
    "attributes": lambda n: _rss(b"<item" + b"".join(b' a%d=""' % k for k in range(n)) + b"/>"),
    "names-distinct": lambda n: _rss(b"".join(b"<n%d/>" % k for k in range(n))),
    "namespaces": lambda n: _rss(b"".join(b'<x xmlns="u%d"/>' % k for k in range(n))),
    "utf-16": lambda n: _rss(b"<item><link>http://a</link></item>" * n).decode().encode("utf-16"),
    "encoding-lies": lambda n: b'<?xml version="1.0" encoding="utf-16"?><rss>' + b"<item/>" * n + b"</rss>",
    "html-with-feeds": lambda n: b'<html><link rel=alternate type="application/rss+xml" href="/x">' * n,
    "html-title": lambda n: b"<html><title>" + b"<" * n,
    "empty": lambda n: b"",
    "nuls": lambda n: _rss(b"\0" * n),
}
register("feeds", ("feed", "probe"), _FEEDS)


def _packed(make: Callable[[int], bytes], n: int) -> bytes:
    return gzip.compress(make(n), 9, mtime=0)


register(
    "sitemap-bombs",
    ("sitemap",),
    {
        f"gzip-{name}": partial(_packed, _SITEMAPS[name])
        for name in ("many", "nested", "siblings", "attributes", "names-distinct", "comments", "text-lines", "spaces")
    },
    n=100_000,
)

register(
    "feed-bombs",
    ("feed", "probe"),
    {
        f"gzip-{name}": partial(_packed, _FEEDS[name])
        for name in (
            "rss-items",
            "rss-nested-closed",
            "atom-entries",
            "attributes",
            "names-distinct",
            "rss-title-endless",
        )
    },
    n=100_000,
)

_ZEROS = b"\0"
register(
    "compressed",
    ("decoded",),
    {
        "gzip": lambda n: b"gzip|" + gzip.compress(_ZEROS * n, 9, mtime=0),
        "gzip-twice": lambda n: b"gzip, gzip|" + gzip.compress(gzip.compress(_ZEROS * n, 9, mtime=0), mtime=0),
        "gzip-thrice": lambda n: b"gzip, gzip, gzip|" + gzip.compress(_ZEROS * n, mtime=0),
        "gzip-layers-many": lambda n: b"gzip," * (n // 100) + b"|" + _ZEROS,
        "gzip-members": lambda n: b"gzip|" + gzip.compress(b"", mtime=0) * (n // 100),
        "gzip-members-full": lambda n: b"gzip|" + gzip.compress(b"x" * 100, mtime=0) * (n // 100),
        "gzip-cut-off": lambda n: b"gzip|" + gzip.compress(_ZEROS * n, mtime=0)[:-9],
        "gzip-damaged": lambda n: b"gzip|" + gzip.compress(_ZEROS * n, mtime=0)[:30] + b"\xff" * 50,
        "gzip-and-rest": lambda n: b"gzip|" + gzip.compress(b"x", mtime=0) + b"rest" * n,
        "gzip-name-endless": lambda n: b"gzip|\x1f\x8b\x08\x08" + b"\0" * 6 + b"a" * n,
        "deflate": lambda n: b"deflate|" + zlib.compress(_ZEROS * n, 9),
        "deflate-bare": lambda n: b"deflate|" + zlib.compress(_ZEROS * n, 9)[2:-4],
        "deflate-junk": lambda n: b"deflate|" + b"\xff" * n,
        "identity": lambda n: b"identity|" + _ZEROS * n,
        "unknown": lambda n: b"br|" + _ZEROS * n,
        "name-endless": lambda n: b"x" * n + b"|" + _ZEROS,
    },
    n=4_000_000,
)

register(
    "robots",
    ("robots",),
    {
        "rules": lambda n: b"User-agent: *\n" + b"Disallow: /x\n" * n,
        "rules-distinct": lambda n: b"User-agent: *\n" + b"".join(b"Disallow: /%d\n" % k for k in range(n)),
        "agents": lambda n: b"".join(b"User-agent: a%d\nDisallow: /\n" % k for k in range(n)),
        "agents-in-a-row": lambda n: b"User-agent: *\n" * n + b"Disallow: /\n",
        "stars": lambda n: b"User-agent: *\nDisallow: /" + b"*" * n + b"x\n",
        "stars-apart": lambda n: b"User-agent: *\nDisallow: /" + b"*a" * n + b"$\n",
        "stars-in-many-rules": lambda n: b"User-agent: *\n" + b"Disallow: /*a*a*a*a*a*a*b\n" * n,
        "dollars": lambda n: b"User-agent: *\nDisallow: /" + b"$" * n + b"\n",
        "percents": lambda n: b"User-agent: *\nDisallow: /" + b"%ff" * n + b"\n",
        "one-line": lambda n: b"User-agent: *\nDisallow: /" + b"a" * n,
        "sitemaps": lambda n: b"Sitemap: http://a.example/s.xml\n" * n,
        "delays": lambda n: b"User-agent: *\nCrawl-delay: " + b"9" * n + b"\n",
        "delays-odd": lambda n: b"User-agent: *\nCrawl-delay: nan\nCrawl-delay: -1\nCrawl-delay: 1e999\n" * n,
        "rates": lambda n: b"User-agent: *\nRequest-rate: 1/" + b"9" * n + b"\n",
        "rates-odd": lambda n: b"User-agent: *\nRequest-rate: 0/0\nRequest-rate: 1/0s 99-99\n" * n,
        "visit-times": lambda n: b"User-agent: *\nVisit-time: 9999-9999\n" * n,
        "colons": lambda n: b":" * n,
        "comments": lambda n: b"#\n" * n,
        "nuls": lambda n: b"User-agent: *\nDisallow: /\0\n" * n,
        "html-instead": lambda n: b"<html>" * n,
        "utf-16": lambda n: ("User-agent: *\nDisallow: /x\n" * n).encode("utf-16"),
    },
)


def _pdf(content: bytes, *more: bytes, filters: bytes = b"/FlateDecode") -> bytes:
    stream = b"<< /Filter %b /Length %d >>\nstream\n%b\nendstream" % (filters, len(content), content)
    page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents 5 0 R /Resources << /Font << /F1 6 0 R >> >> >>"
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
    pages = b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>"
    return assemble([b"<< /Type /Catalog /Pages 2 0 R >>", pages, page, b"<< /Title (x) >>", stream, font, *more])


_TEXT = b"BT /F1 9 Tf %b ET"
register(
    "pdfs",
    ("document",),
    {
        "operations": lambda n: _pdf(zlib.compress(_TEXT % (b"(x) Tj " * n))),
        "zeros": lambda n: _pdf(zlib.compress(b"\0" * n)),
        "packed-twice": lambda n: _pdf(
            zlib.compress(zlib.compress(_TEXT % (b"(x) Tj " * n))), filters=b"[/FlateDecode /FlateDecode]"
        ),
        "packed-often": lambda n: _pdf(zlib.compress(b"x" * n), filters=b"[" + b"/FlateDecode " * 200 + b"]"),
        "arrays": lambda n: _pdf(zlib.compress(_TEXT % (b"[" * (n // 10)))),
        "dictionaries": lambda n: _pdf(zlib.compress(b"x"), b"<< /A " * (n // 10)),
        "strings-open": lambda n: _pdf(zlib.compress(_TEXT % (b"(" * n))),
        "hexadecimal": lambda n: _pdf(zlib.compress(_TEXT % (b"<" + b"41" * n + b"> Tj"))),
        "numbers": lambda n: _pdf(zlib.compress(_TEXT % (b"9" * n + b" Tf"))),
        "pages-of-themselves": lambda n: _pdf(b"x").replace(b"/Kids [3 0 R]", b"/Kids [2 0 R]"),
        "pages-count": lambda n: _pdf(b"x").replace(b"/Count 1", b"/Count 999999999"),
        "contents-of-itself": lambda n: _pdf(b"x").replace(b"/Contents 5 0 R", b"/Contents 3 0 R"),
        "length-lies": lambda n: _pdf(b"x" * 100).replace(b"/Length 100", b"/Length 999999999"),
        "length-negative": lambda n: _pdf(b"x" * 100).replace(b"/Length 100", b"/Length -1"),
        "startxref-of-itself": lambda n: _pdf(b"x").replace(b"startxref", b"startxref\n0\nstartxref"),
        "cut-off": lambda n: _pdf(zlib.compress(b"x" * n))[:-50],
        "nothing": lambda n: b"%PDF-1.7\n" + b"\xff" * n,
        "objects": lambda n: _pdf(b"x", *[b"null"] * (n // 100)),
        "ascii85": lambda n: _pdf(b"z" * n + b"~>", filters=b"/ASCII85Decode"),
        "lzw": lambda n: _pdf(b"\x80\x0b\x60\x50" * (n // 4), filters=b"/LZWDecode"),
        "run-length": lambda n: _pdf(b"\x81x" * (n // 2), filters=b"/RunLengthDecode"),
        "encrypted": lambda n: _pdf(b"x" * 10).replace(b"/Root", b"/Encrypt << /Filter /Standard /V 9 /R 9 >> /Root"),
    },
    n=100_000,
)

register(
    "documents",
    ("document", "shown_page"),
    {
        "attributes": lambda n: b"<html><p" + b"".join(b" a%d=b" % k for k in range(n // 8)) + b">x</p>",
        "divs": lambda n: b"<html>" + b"<div>" * (n // 5),
        "one-line": lambda n: b"<html><article><p>" + b"word " * (n // 5),
        "links": lambda n: b"<html>" + b"<a href=/x>y</a>" * (n // 16),
        "tables": lambda n: b"<html>" + b"<table><tr><td>" * (n // 15),
        "entities": lambda n: b"<html><p>&#" + b"9" * n + b";",
        "comments": lambda n: b"<html>" + b"<!--" * (n // 4),
        "metas": lambda n: b"<html>" + b'<meta name="date" content="9999-99-99">' * (n // 40),
        "json-ld": lambda n: b'<html><script type="application/ld+json">' + b"[" * n + b"</script><p>x",
        "languages": lambda n: b'<html lang="' + b"x" * n + b'"><p>y',
        "charsets": lambda n: b"<html><meta charset=utf-7>" + b"+AGE-" * (n // 5),
        "xml": lambda n: b"<?xml version='1.0'?>" + b"<a>" * (n // 3),
        "plain": lambda n: b"word\n" * (n // 5),
        "eight-bit": lambda n: b"<html>" + b"\xff\xfe" * (n // 2),
        "nuls": lambda n: b"<html>" + b"\0" * n,
        "json": lambda n: b"[" * n,
    },
    n=50_000,
)

register(
    "urls",
    ("url",),
    {
        "path": lambda n: b"http://a.example/" + b"a" * n,
        "dots": lambda n: b"http://a.example/" + b"../" * n,
        "slashes": lambda n: b"http://a.example" + b"/" * n,
        "percents": lambda n: b"http://a.example/" + b"%" * n,
        "percent-escapes": lambda n: b"http://a.example/" + b"%2e%2e/" * n,
        "query": lambda n: b"http://a.example/?" + b"a=b&" * n,
        "query-ampersands": lambda n: b"http://a.example/?" + b"&" * n,
        "query-tracking": lambda n: b"http://a.example/?" + b"utm_x=1&" * n,
        "fragment": lambda n: b"http://a.example/#" + b"#" * n,
        "host": lambda n: b"http://" + b"a." * n,
        "host-label": lambda n: b"http://" + b"a" * n + b"/",
        "host-idna": lambda n: "http://ć".encode() + "ć".encode() * n + b"/",
        "host-idna-dots": lambda n: "http://a\u3002".encode() + "b\u3002".encode() * n + b"/",
        "host-punycode": lambda n: b"http://xn--" + b"a9" * n + b"/",
        "host-empty": lambda n: b"http://" + b":" * n,
        "user": lambda n: b"http://" + b"a@" * n + b"b.example/",
        "port": lambda n: b"http://a.example:" + b"9" * n + b"/",
        "port-unicode": lambda n: "http://a.example:٣²/".encode() + b"x" * n,
        "ip-v6": lambda n: b"http://[" + b"1:" * n + b"]/",
        "ip-v6-zone": lambda n: b"http://[fe80::1%25" + b"a" * n + b"]/",
        "ip-v4-odd": lambda n: b"http://0x7f.1/" + b"x" * n,
        "scheme": lambda n: b"a" * n + b"://x",
        "schemes": lambda n: b"http:" * n,
        "controls": lambda n: b"http://a.example/\x01\x7f" * n,
        "spaces": lambda n: b" " * n + b"http://a.example",
        "backslashes": lambda n: b"http:" + b"\\" * n + b"a.example",
        "surrogates": lambda n: "http://a.example/\ud800".encode("utf-8", "surrogatepass") * n,
        "nuls": lambda n: b"http://a\0.example/" + b"\0" * n,
        "relative": lambda n: b"../" * n,
        "empty": lambda n: b"",
    },
)
