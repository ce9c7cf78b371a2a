"""Plain text of mail: escaped, with links that lead where they say; and files that can only be saved."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.dashboard.display.foreign_content import download, folded, host_of, linked, safe_url
from postroom.dashboard.forms import mistake_in
from postroom.domain.errors import BadInput
from postroom.mail.query import QueryError
from tests.support.hostile_mail import read_page


@given(st.text() | st.from_regex(r"(https?://|mailto:|javascript:)[\x20-\x7e]{0,40}"))
def test_no_text_is_more_than_text(text: str) -> None:
    assert read_page(str(linked(text.replace("\ud800", "")))).harms == []
    assert read_page(str(folded(text.replace("\ud800", "")))).harms == []


@pytest.mark.req("UX-1")
def test_quoted_lines_are_folded_unless_there_is_nothing_else() -> None:
    quote = "> one\n> two\n> <b>\n"
    folding = '<details class="quoted"><summary>Quoted text</summary>&gt; one\n&gt; two\n&gt; &lt;b&gt;\n</details>'
    assert folded(f"Yes.\n{quote}Bye") == f"Yes.\n{folding}Bye"
    assert folded(f"Yes.\n{quote[:-1]}").endswith("&lt;b&gt;</details>")
    assert folded(quote) == linked(quote)
    assert folded("Yes.\n> one\n> two\nBye") == linked("Yes.\n> one\n> two\nBye")
    assert "<details" in folded("Yes.\n-----Original Message-----\nFrom: Ann")


def test_an_address_becomes_a_link_without_the_full_stop_after_it() -> None:
    assert linked("See https://x.example/a?b=1&c=2.") == (
        'See <a href="https://x.example/a?b=1&amp;c=2" rel="noopener noreferrer" target="_blank">'
        "https://x.example/a?b=1&amp;c=2</a>."
    )


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://bank.example@evil.example/", "evil.example"),
        ("https://bank.example:pw@evil.example:8/", "evil.example"),
        ("https://\u0430\u0440\u0440\u04cf\u0435.example/", "xn--80ak6aa92e.example"),
    ],
)
def test_an_address_that_hides_its_host_is_followed_by_it(url: str, host: str) -> None:
    assert f"[leads to {host}]" in linked(f"Go to {url} now")


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        " java\nscript:alert(1)",
        "data:text/html,x",
        "vbscript:x",
        "file:///x",
        "//x.example",
        "/logout",
        "https:x",
        "https:/x.example",
        "http://",
        "https:\\\\x.example",
        "ftp://x.example",
        "blob:x",
        "http://[bad",
        "",
    ],
)
def test_no_other_address_is_a_link(url: str) -> None:
    assert safe_url(url) is None


def test_what_cannot_be_seen_in_an_address_is_not_in_the_link() -> None:
    assert safe_url("https://pay\u200bpal.example/\u202e") == "https://paypal.example/"
    assert host_of("mailto:Ann@Example.org?subject=x") == "example.org"


@pytest.mark.req("PL-7")
@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        'a"; x=y.html',
        "a\r\nX-Evil: 1",
        "invoice\u202efdp.exe",
        "naïve ☃.txt",
        "",
        "." * 9,
        "n" * 9_000,
        "\ud800",
    ],
)
def test_a_file_is_only_ever_saved_and_under_a_harmless_name(name: str) -> None:
    answer = download(b"<script>", name)
    said = answer.headers["content-disposition"]
    assert said.startswith('attachment; filename="')
    assert said.isascii()
    assert said.isprintable()
    assert "/" not in said
    assert said.count('"') == 2
    assert "%E2%80%AE" not in said
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_mistake_is_pointed_at() -> None:
    found = mistake_in("a OR", QueryError("nothing follows", position=5, expected="a word"))
    assert found is not None
    assert (found.before, found.at, found.after) == ("a OR", "", "")
    assert mistake_in("x", BadInput("account", "no")) is None
