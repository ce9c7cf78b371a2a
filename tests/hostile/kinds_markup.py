"""Hostile HTML, which reaches us as the body of a message, as a web page and as a list of links. All three read it."""

from __future__ import annotations

from collections.abc import Callable

from tests.hostile.corpus import Make, register
from tests.hostile.kinds_mail import mail

MARKUP = ("mail", "shown", "page")


def _body(make: Callable[[int], bytes]) -> Make:
    return lambda n: mail(make(n), b"Content-Type: text/html; charset=utf-8")


def _markup(family: str, kinds: dict[str, Callable[[int], bytes]]) -> None:
    register(family, MARKUP, {name: _body(make) for name, make in kinds.items()})


def _numbered(form: bytes, n: int) -> bytes:
    return b"".join(form % k for k in range(n))


_markup(
    "entities",
    {
        "nines": lambda n: b"&#" + b"9" * n + b";",
        "nines-open": lambda n: b"&#" + b"9" * n,
        "zeros": lambda n: b"&#" + b"0" * n + b"65;",
        "hexadecimal": lambda n: b"&#x" + b"f" * n + b";",
        "hexadecimal-zeros": lambda n: b"&#x" + b"0" * n + b"41;",
        "many-nines": lambda n: (b"&#" + b"9" * 5_000 + b";") * n,
        "in-href": lambda n: b'<a href="http://a.example/&#' + b"9" * n + b';">x</a>',
        "in-title": lambda n: b'<p title="&#' + b"9" * n + b';">x</p>',
        "in-style": lambda n: b'<p style="color:&#' + b"9" * n + b';">x</p>',
        "in-image": lambda n: b'<img src="cid:&#' + b"9" * n + b';" alt="&#' + b"9" * n + b';">',
        "unicode-digits": lambda n: "&#٣٣²;".encode() * n,
        "surrogates": lambda n: b"&#xD800;&#55296;&#xDFFF;" * n,
        "nul-and-controls": lambda n: b"&#0;&#1;&#x80;&#x1F;" * n,
        "beyond-unicode": lambda n: b"&#x110000;&#1114112;" * n,
        "ampersands": lambda n: b"&" * n,
        "ampersand-hash": lambda n: b"&#" * n,
        "ampersand-hash-x": lambda n: b"&#x" * n,
        "names-unknown": lambda n: b"&nosuchentity;" * n,
        "names-without-semicolon": lambda n: b"&notit&ampamp&ltlt" * n,
        "name-endless": lambda n: b"&" + b"a" * n + b";",
        "name-longest": lambda n: b"&CounterClockwiseContourIntegral;" * n,
        "doubly-escaped": lambda n: b"&amp;" * n + b"lt;",
        "two-characters": lambda n: b"&NotEqualTilde;&acE;" * n,
    },
)

_markup(
    "tags",
    {
        "open-angles": lambda n: b"<" * n,
        "close-angles": lambda n: b">" * n,
        "angle-pairs": lambda n: b"<>" * n,
        "never-closed": lambda n: b"<a " * n,
        "never-closed-long": lambda n: b"<a " + b"x" * n,
        "end-tags": lambda n: b"</p>" * n,
        "end-tags-open": lambda n: b"</" * n,
        "end-tags-with-attributes": lambda n: b"</p a=b>" * n,
        "name-endless": lambda n: b"<" + b"a" * n + b">",
        "names-distinct": lambda n: _numbered(b"<t%d>", n),
        "name-with-colons": lambda n: b"<" + b"a:" * n + b">",
        "name-with-nuls": lambda n: b"<\0p\0>" * n,
        "self-closing": lambda n: b"<br/><p/>" * n,
        "slashes": lambda n: b"<p" + b"/" * n + b">",
        "question-marks": lambda n: b"<?" * n,
        "processing-instructions": lambda n: b"<?php x ?>" * n,
        "doctypes": lambda n: b"<!DOCTYPE html>" * n,
        "doctype-open": lambda n: b"<!DOCTYPE " + b"a " * n,
        "cdata": lambda n: b"<![CDATA[x]]>" * n,
        "cdata-open": lambda n: b"<![CDATA[" * n,
        "conditional": lambda n: b"<!--[if mso]>x<![endif]-->" * n,
        "uppercase": lambda n: b"<DIV><SPAN>x</SPAN></DIV>" * n,
        "newlines-within": lambda n: b"<p" + b"\n" * n + b">x",
        "line-breaks": lambda n: b"<br>" * n,
        "half-tags": lambda n: b"<sty<script>le" * n,
    },
)

_markup(
    "attributes",
    {
        "many": lambda n: b"<p" + b" a=b" * n + b">x</p>",
        "many-distinct": lambda n: b"<p" + _numbered(b" a%d=b", n) + b">x</p>",
        "many-on-a-link": lambda n: b"<a href=http://a.example" + _numbered(b" a%d=b", n) + b">x</a>",
        "many-without-value": lambda n: b"<p" + _numbered(b" a%d", n) + b">x",
        "many-never-closed": lambda n: b"<p" + _numbered(b" a%d=b", n),
        "many-on-body": lambda n: b"<body a=1>" + b"".join(b"<body a%d=1>" % k for k in range(n)),
        "many-on-html": lambda n: b"".join(b"<html a%d=1>" % k for k in range(n)),
        "open-double-quotes": lambda n: b'<a href="' * n,
        "open-single-quotes": lambda n: b"<a href='" * n,
        "alternating-quotes": lambda n: b"<a x=\"'y='\" " * n,
        "quotes-only": lambda n: b"<p " + b"\"'" * n + b">",
        "equals-only": lambda n: b"<p " + b"=" * n + b">",
        "value-endless": lambda n: b'<p class="' + b"x" * n + b'">y',
        "value-unquoted-endless": lambda n: b"<p class=" + b"x" * n + b">y",
        "name-endless": lambda n: b"<p " + b"x" * n + b"=y>z",
        "spaces-before-equals": lambda n: b"<p a" + b" " * n + b"=b>",
        "angle-in-value": lambda n: b'<p a="<' * n,
        "handlers": lambda n: b"<p onclick=alert(1)>" * n,
        "nuls": lambda n: b"<p \0a\0=\0b\0>" * n,
    },
)

_markup(
    "comments",
    {
        "open": lambda n: b"<!--" * n,
        "open-long": lambda n: b"<!--" + b"x" * n,
        "dashes": lambda n: b"<!--" + b"-" * n,
        "dashes-spaced": lambda n: b"<!--" + b"- " * n,
        "almost-closed": lambda n: b"<!--" + b"--!" * n,
        "empty": lambda n: b"<!-->" * n,
        "bang-only": lambda n: b"<!" * n,
        "bang-dash": lambda n: b"<!-" * n,
        "many": lambda n: b"<!--x-->" * n,
        "nested": lambda n: b"<!--" * n + b"-->" * n,
        "bogus": lambda n: b"<!x>" * n,
    },
)

_markup(
    "unseen",
    {
        "styles-open": lambda n: b"<style>" * n,
        "scripts-open": lambda n: b"<script>" * n,
        "titles-open": lambda n: b"<title>" * n,
        "templates-open": lambda n: b"<template>" * n,
        "svg-open": lambda n: b"<svg>" * n,
        "heads-open": lambda n: b"<head>" * n,
        "textareas-open": lambda n: b"<textarea>" * n,
        "noscript-open": lambda n: b"<noscript>" * n,
        "plaintext": lambda n: b"<plaintext>" * n,
        "style-almost-closed": lambda n: b"<style>" + b"</style" * n,
        "script-almost-closed": lambda n: b"<script>" + b"</script " * n,
        "script-double-escaped": lambda n: b"<script><!--<script>" * n,
        "all-open-in-turn": lambda n: b"<style><script><svg><title><template>" * n,
        "style-spaces": lambda n: b"<style>x</style" + b" " * n + b">y",
        "style-many-closed": lambda n: b"<style>a{}</style>" * n,
        "xmp": lambda n: b"<xmp><listing>" * n,
    },
)

_markup(
    "nesting",
    {
        "divs": lambda n: b"<div>" * n,
        "divs-closed": lambda n: b"<div>" * n + b"</div>" * n,
        "spans": lambda n: b"<span>" * n + b"x",
        "bold": lambda n: b"<b>" * n + b"x",
        "formatting-and-blocks": lambda n: b"<b><p>" * n,
        "formatting-crossed": lambda n: b"<b><i></b></i>" * n,
        "formatting-distinct": lambda n: _numbered(b"<font size=%d>", n) + b"<p>" * 100,
        "links-within-links": lambda n: b"<a href=http://a.example/>" * n,
        "links-and-blocks": lambda n: b"<a href=/><div>" * n,
        "tables": lambda n: b"<table>" * n,
        "tables-and-cells": lambda n: b"<table><tr><td>" * n,
        "foster-parents": lambda n: b"<table><b>x" * n,
        "rows-without-table": lambda n: b"<tr><td>" * n,
        "lists": lambda n: b"<ul><li>" * n,
        "list-items": lambda n: b"<li>" * n,
        "definitions": lambda n: b"<dl><dt><dd>" * n,
        "selects": lambda n: b"<select><option>" * n,
        "forms": lambda n: b"<form>" * n,
        "buttons": lambda n: b"<button>" * n,
        "headings": lambda n: b"<h1><h2>" * n,
        "paragraphs": lambda n: b"<p>" * n,
        "quotes": lambda n: b"<blockquote>" * n + b"x",
        "framesets": lambda n: b"<frameset>" * n,
        "iframes": lambda n: b"<iframe>" * n,
        "objects": lambda n: b"<object><embed>" * n,
        "ruby": lambda n: b"<ruby><rb><rt>" * n,
        "nobr": lambda n: b"<nobr>" * n,
        "marquee": lambda n: b"<marquee>" * n,
        "ends-before-starts": lambda n: b"</b></i></div>" * n + b"<b>" * n,
        "closes-far-away": lambda n: b"<a>" + b"<div>" * n + b"</a>" * n,
    },
)

_markup(
    "foreign",
    {
        "svg-deep": lambda n: b"<svg>" + b"<g>" * n,
        "svg-paths": lambda n: b'<svg><path d="' + b"M0 0L1 1" * n + b'"/></svg>',
        "svg-uses": lambda n: b"<svg><use href='#a'/>" * n,
        "svg-breakouts": lambda n: b"<svg><p>" * n,
        "math-deep": lambda n: b"<math>" + b"<mrow>" * n,
        "math-and-svg": lambda n: b"<math><mtext><svg><desc>" * n,
        "svg-attributes": lambda n: b"<svg" + _numbered(b" a%d=b", n) + b">",
    },
)

_markup(
    "styles",
    {
        "declarations": lambda n: b'<p style="' + b"color:red;" * n + b'">x',
        "declarations-open": lambda n: b'<p style="' + b"color:" * n + b'">x',
        "semicolons": lambda n: b'<p style="' + b";" * n + b'">x',
        "brackets": lambda n: b'<p style="width:' + b"(" * n + b'">x',
        "braces": lambda n: b'<p style="width:' + b"{[(" * n + b'">x',
        "urls": lambda n: b'<p style="background:' + b"url(http://a.example)," * n + b'">x',
        "urls-open": lambda n: b'<p style="background:' + b"url(" * n + b'">x',
        "escapes": lambda n: b'<p style="' + b"\\63 olor:red;" * n + b'">x',
        "comments": lambda n: b'<p style="' + b"/*" * n + b'">x',
        "strings": lambda n: b"<p style=\"font-family:'" + b"\\'" * n + b'">x',
        "numbers": lambda n: b'<p style="width:' + b"9" * n + b'px">x',
        "important": lambda n: b'<p style="color:red' + b" !important" * n + b'">x',
        "on-every-tag": lambda n: b'<p style="margin:0;color:#fff">x</p>' * n,
        "expressions": lambda n: b'<p style="width:' + b"expression(" * n + b'">x',
    },
)

_markup(
    "links",
    {
        "many": lambda n: _numbered(b"<a href=http://a.example/%d>x</a>", n),
        "many-next": lambda n: _numbered(b"<a rel=next href=/%d>next</a>", n),
        "url-endless": lambda n: b'<a href="http://a.example/' + b"a" * n + b'">x</a>',
        "host-endless": lambda n: b'<a href="http://' + b"a." * n + b'example">x</a>',
        "host-idna": lambda n: '<a href="http://č'.encode() + "č".encode() * n + b'.example">x</a>',
        "user-endless": lambda n: b'<a href="http://bank.example' + b"@" * n + b'evil.example">x</a>',
        "port-endless": lambda n: b'<a href="http://a.example:' + b"9" * n + b'/">x</a>',
        "ip-v6-open": lambda n: b'<a href="http://[' + b":" * n + b'/">x</a>',
        "ip-v6-many": lambda n: b'<a href="http://[::1">x</a><a href="http://[g]/">y</a>' * n,
        "schemes": lambda n: b'<a href="' + b"javascript:" * n + b'">x</a>',
        "percents": lambda n: b'<a href="http://a.example/' + b"%" * n + b'">x</a>',
        "text-endless": lambda n: b"<a href=http://a.example>" + b"www.bank.example/" * n + b"</a>",
        "text-of-dots": lambda n: b"<a href=http://a.example>" + b"a." * n + b"</a>",
        "text-of-tags": lambda n: b"<a href=http://a.example>" + b"<b>" * n + b"</a>",
        "relative-dots": lambda n: b'<a href="' + b"../" * n + b'">x</a>',
        "bases": lambda n: b"<base href=http://a.example/>" * n + b"<a href=x>y</a>",
        "images": lambda n: _numbered(b"<img src=http://a.example/%d.gif>", n),
        "images-data": lambda n: b'<img src="data:image/png;base64,' + b"A" * n + b'">',
        "classes": lambda n: b'<a class="' + b"next " * n + b'" href=/x>y</a>',
        "areas": lambda n: b"<map>" + b"<area href=/x>" * n,
        "spaces": lambda n: b'<a href="' + b"\t\n " * n + b'http://a.example">x</a>',
    },
)

_markup(
    "writing",
    {
        "one-word": lambda n: b"<p>" + b"W" * n,
        "spaces": lambda n: b"<p>" + b" " * n + b"x",
        "no-break-spaces": lambda n: b"&nbsp;" * n,
        "breaks-of-ours": lambda n: "\ue001\ue000".encode() * n,
        "nuls": lambda n: b"<p>\0" * n,
        "direction": lambda n: "<bdo dir=rtl>\u202e".encode() * n,
        "combining": lambda n: b"<p>a" + "\u0301".encode() * n,
        "addresses": lambda n: b"http://a.example " * n,
        "address-endless": lambda n: b"http://" + b"a" * n,
        "punctuation-after": lambda n: b"http://a.example/" + b")" * n,
        "text-only": lambda n: b"just words\n" * n,
        "soft-hyphens": lambda n: "\u00ad\u034f".encode() * n + b"x",
    },
)
