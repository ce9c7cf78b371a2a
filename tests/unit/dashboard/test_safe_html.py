"""HTML of mail: what is left of it does nothing, whatever was in it, and is still worth reading."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.dashboard.display.foreign_content import DEEPEST_HTML, FRAME_POLICY, SANDBOX, frame_document, safe_html
from postroom.mail.html import LONGEST_HTML
from tests.support.hostile_mail import HTML_BODIES, read_frame

_SCRAPS = (
    "< > \" ' / = & ; <!-- --> <script> </script> <style> </style> <svg> <a&href= javascript:alert(1) <b> </b> <table> "
    "https://x.example/ <img/src=x/onerror=alert(1)> <p/style= url(x) <td> </p> <math> <mtext> &#x202e; &lt;script&gt; "
    "]]> <![CDATA[ <title> <textarea> <noscript> </svg> </math> <iframe> <template> <form> <select> <plaintext> <li>"
)
_PIECES = st.sampled_from([*_SCRAPS.split(), " ", "\0", "\ud800", "<a href="])


@pytest.mark.req("PL-7")
@pytest.mark.parametrize("name", HTML_BODIES)
def test_nothing_of_an_attack_is_left(name: str) -> None:
    read = read_frame(frame_document(safe_html(HTML_BODIES[name])))
    assert read.harms == []
    assert read.deepest <= 3 * DEEPEST_HTML  # a table gets the parts that it lacks


@given(st.lists(_PIECES | st.text(max_size=5), max_size=40).map("".join))
def test_whatever_is_put_together_does_nothing_and_stays_so(markup: str) -> None:
    once = safe_html(markup, folds_quotes=True)
    assert read_frame(frame_document(once)).harms == []
    assert read_frame(frame_document(safe_html(once.html))).harms == []


@pytest.mark.req("UX-1")
def test_what_a_reply_quotes_is_folded_once() -> None:
    inner = "<blockquote>they said<blockquote>I said</blockquote></blockquote>"
    folded = f"<details><summary>Quoted text</summary>{inner}</details>"
    assert safe_html(f"<p>Yes.</p>{inner}<p>Bye</p>", folds_quotes=True).html == f"<p>Yes.</p>{folded}<p>Bye</p>"
    assert safe_html(inner, folds_quotes=True).html == inner  # all that there is stays open
    assert safe_html("a<details><summary>x</summary>b</details>", folds_quotes=True).html == "axb"
    assert safe_html(f"<p>Yes.</p>{inner[:-26]}", folds_quotes=True).html.endswith("</blockquote></details>")


def test_what_people_write_is_kept() -> None:
    markup = (
        '<html><head><title>x</title><style>p{color:red}</style></head><body bgcolor="#eee"><p style="color:#c00;'
        'position:absolute">Dear <b>Ann</b>,<br>2 &lt; 3 &amp; 4<ul><li>one<li>two</ul>'
        "<table border=1><tr><td colspan=2>cell</table><blockquote>said</blockquote></body></html>"
    )
    assert safe_html(markup).html == (
        '<p style="color:#c00">Dear <b>Ann</b>,<br>2 &lt; 3 &amp; 4</p><ul><li>one</li><li>two</li></ul>'
        '<table border="1"><tbody><tr><td colspan="2">cell</td></tr></tbody></table><blockquote>said</blockquote>'
    )


def test_pictures_are_left_out_and_counted_and_what_they_say_is_kept() -> None:
    safe = safe_html(
        '<img src="http://t.example/p.gif" alt="Our &lt;logo&gt;"><img src="cid:1"><img src="HTTPS://t.example/q">'
    )
    assert (safe.remote_images, safe.attached_images) == (2, 1)
    assert safe.html == "Our &lt;logo&gt;"


def test_a_link_says_where_it_leads_and_one_that_poses_is_found_out() -> None:
    safe = safe_html(
        '<a href="https://shop.example/x?a=1&amp;b=2">our <b>shop</b></a><a href="https://evil.example">www.bank.example/login</a>'
        '<a href="https://mail.bank.example/">bank.example</a><a href="javascript:alert(1)">nothing</a>'
    )
    assert [(link.text, link.host, link.poses_as) for link in safe.links] == [
        ("our shop", "shop.example", None),
        ("www.bank.example/login", "evil.example", "bank.example"),
        ("bank.example", "mail.bank.example", None),
    ]
    assert 'href="https://shop.example/x?a=1&amp;b=2"' in safe.html
    assert 'title="Leads to evil.example"' in safe.html


def test_a_thousand_paragraphs_that_nobody_closed_are_a_thousand_paragraphs() -> None:
    html = safe_html("<p>word<li>item" * 1_000).html
    assert html.count("<p>word</p>") == 1_000


def test_what_is_too_long_is_cut_and_says_so() -> None:
    assert safe_html("<p>" + "x" * LONGEST_HTML).is_cut
    assert safe_html("<i></i>" * 30_000).is_cut
    assert not safe_html("<p>x").is_cut


@pytest.mark.req("PL-7")
def test_the_frame_may_run_nothing_load_nothing_and_send_nothing() -> None:
    assert "default-src 'none'" in FRAME_POLICY
    assert "form-action 'none'" in FRAME_POLICY
    for power in ("allow-scripts", "allow-same-origin", "allow-forms", "allow-top-navigation", "script-src", "img-src"):
        assert power not in FRAME_POLICY
        assert power not in SANDBOX
