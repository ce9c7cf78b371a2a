"""One form for every address."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.domain.errors import BadInput
from postroom.web.fetching.urls import LONGEST_URL, backfill_job_id, canonicalize_url

pytestmark = pytest.mark.req("WB-12")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://example.com/page?b=2&a=1", "https://example.com/page?a=1&b=2"),
        ("https://example.com/page#section", "https://example.com/page"),
        ("https://example.com/page/", "https://example.com/page"),
    ],
    ids=["order", "fragment", "trailing slash"],
)
def test_1_the_same_url_always_has_the_same_canonical_form(one: str, other: str) -> None:
    """spec/4 TEST-1, word for word."""
    assert canonicalize_url(one) == canonicalize_url(other)


@pytest.mark.req("WB-2")
def test_2_the_same_inputs_always_have_the_same_job_id() -> None:
    """spec/4 TEST-2. The second value was computed with sha1sum, not with this code."""
    first = backfill_job_id("narodne-novine", "https://narodne-novine.nn.hr/123")
    assert first == backfill_job_id("narodne-novine", "https://narodne-novine.nn.hr/123")
    assert first == "backfill:narodne-novine:0adf53518ddc"
    assert first == backfill_job_id("narodne-novine", "HTTPS://Narodne-Novine.NN.hr:443/123/?utm_source=x#top")
    assert first != backfill_job_id("another", "https://narodne-novine.nn.hr/123")


HARD_CASES = {
    "scheme and host in capitals": ("HTTPS://EXAMPLE.Com/Path", "https://example.com/Path"),
    "the path keeps its case": ("https://example.com/A/b", "https://example.com/A/b"),
    "default port of https": ("https://example.com:443/a", "https://example.com/a"),
    "default port of http": ("http://example.com:80/a", "http://example.com/a"),
    "another port": ("https://example.com:8443/a", "https://example.com:8443/a"),
    "the other scheme's port": ("http://example.com:443/a", "http://example.com:443/a"),
    "an empty port": ("https://example.com:/a", "https://example.com/a"),
    "no path": ("https://example.com", "https://example.com/"),
    "root": ("https://example.com/", "https://example.com/"),
    "trailing slashes": ("https://example.com/a//", "https://example.com/a"),
    "an empty segment inside": ("https://example.com/a//b", "https://example.com/a//b"),
    "dot segments": ("https://example.com/a/./b/../c", "https://example.com/a/c"),
    "more dots than segments": ("https://example.com/../../a", "https://example.com/a"),
    "dots in disguise": ("https://example.com/a/%2E%2e/b", "https://example.com/b"),
    "a dot that is no segment": ("https://example.com/a.b/..c", "https://example.com/a.b/..c"),
    "percent-encoding in small letters": ("https://example.com/%c5%a1", "https://example.com/%C5%A1"),
    "percent-encoding left out": ("https://example.com/š", "https://example.com/%C5%A1"),
    "percent-encoding that is not needed": ("https://example.com/%7Euser/%61", "https://example.com/~user/a"),
    "a slash that is data": ("https://example.com/a%2Fb", "https://example.com/a%2Fb"),
    "a percent sign that encodes nothing": ("https://example.com/100%", "https://example.com/100%25"),
    "a broken escape": ("https://example.com/%zz", "https://example.com/%25zz"),
    "bytes that are no UTF-8": ("https://example.com/%e8", "https://example.com/%E8"),
    "a space": ("https://example.com/a b", "https://example.com/a%20b"),
    "a name in another script": ("https://müller.example/", "https://xn--mller-kva.example/"),
    "the same name in ASCII": ("https://xn--mller-kva.example/", "https://xn--mller-kva.example/"),
    "the same name in capitals": ("https://MÜLLER.example/", "https://xn--mller-kva.example/"),
    "a full stop of another script": ("https://example。com/", "https://example.com/"),
    "a dot at the end of the host": ("https://example.com./a", "https://example.com/a"),
    "IPv6": ("http://[2001:DB8:0:0::1]:80/a", "http://[2001:db8::1]/a"),
    "an underscore in a host": ("https://my_site.example.com/", "https://my_site.example.com/"),
    "fragment": ("https://example.com/a?b=1#c?d=2", "https://example.com/a?b=1"),
    "an empty fragment": ("https://example.com/a#", "https://example.com/a"),
    "an empty query": ("https://example.com/a?", "https://example.com/a"),
    "empty parameters": ("https://example.com/a?&&b=1&", "https://example.com/a?b=1"),
    "a parameter without value": ("https://example.com/a?b", "https://example.com/a?b"),
    "a parameter with an empty value": ("https://example.com/a?b=", "https://example.com/a?b="),
    "parameters by name, then value": ("https://e.com/?b=2&a=2&b=1&a=1", "https://e.com/?a=1&a=2&b=1&b=2"),
    "a plus is a space": ("https://example.com/?q=a+b", "https://example.com/?q=a%20b"),
    "a plus that is data": ("https://example.com/?q=a%2bb", "https://example.com/?q=a%2Bb"),
    "an ampersand that is data": ("https://example.com/?q=a%26b", "https://example.com/?q=a%26b"),
    "an equals sign in a value": ("https://example.com/?q=a=b", "https://example.com/?q=a=b"),
    "tracking": ("https://e.com/a?utm_source=x&id=7&fbclid=y&gclid=z&UTM_Medium=m", "https://e.com/a?id=7"),
    "only tracking": ("https://example.com/a?utm_campaign=x", "https://example.com/a"),
    "tracking in disguise": ("https://example.com/a?%75tm_source=x", "https://example.com/a"),
    "what only looks like tracking": ("https://e.com/?utmost=1&mygclid=2", "https://e.com/?mygclid=2&utmost=1"),
    "backslashes as browsers read them": ("https://example.com\\a\\b", "https://example.com/a/b"),
    "a backslash does not hide the host": (
        "https://good.example\\@evil.example/",
        "https://good.example/@evil.example",
    ),
    "space and line breaks around": ("  https://example.com/a\n", "https://example.com/a"),
    "a line break inside": ("https://example.com/a\n b", "https://example.com/a%20b"),
}


@pytest.mark.parametrize(("url", "canonical"), HARD_CASES.values(), ids=HARD_CASES)
def test_hard_cases_have_one_form_which_is_its_own(url: str, canonical: str) -> None:
    assert canonicalize_url(url) == canonical
    assert canonicalize_url(canonical) == canonical


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "does not begin with http"),
        ("/relative", "does not begin with http"),
        ("//example.com/", "does not begin with http"),
        ("ftp://example.com/", "does not begin with http"),
        ("javascript:alert(1)", "does not begin with http"),
        ("data:text/html,x", "does not begin with http"),
        ("mailto:me@example.com", "does not begin with http"),
        ("file:///etc/passwd", "does not begin with http"),
        ("http://", "has no valid host"),
        ("http:///path", "has no valid host"),
        ("http://user:secret@example.com/", "user name or password"),
        ("http://@example.com/", "user name or password"),
        ("http://example.com:99999/", "no valid port"),
        ("http://example.com:x/", "no valid port"),
        ("http://exa mple.com/", "has no valid host"),
        ("http://-example.com/", "has no valid host"),
        ("http://a..b/", "has no valid host"),
        (f"http://{'a' * 64}.com/", "has no valid host"),
        (f"http://{'a.' * 130}com/", "has no valid host"),
        ("http://[::1/", "is not an address"),
        ("http://[fe80::1%25eth0]/", "names a network of this machine"),
        ("http://example.com/\x00", "control characters"),
        ("http://example.com/\ud800", "nothing can encode"),
        (f"http://example.com/{'a' * LONGEST_URL}", "longer than"),
        (f"http://example.com/{'š' * 400}", "longer than"),
        (f"http://example.com/{'a' * 10_000_000}", "longer than"),
    ],
)
def test_what_is_no_public_web_address_is_refused_by_name(url: str, problem: str) -> None:
    with pytest.raises(BadInput, match=problem) as refusal:
        canonicalize_url(url)
    assert refusal.value.field == "url"
    assert len(refusal.value.message) < 1_000


def test_the_longest_address_that_fits_is_taken() -> None:
    longest = "http://example.com/" + "a" * (LONGEST_URL - len("http://example.com/"))
    assert canonicalize_url(longest) == longest


_TEXT = st.text(max_size=12)
_HOSTS = st.sampled_from(["example.com", "EXAMPLE.com.", "šport.hr", "xn--port-r9a.hr", "[::1]", "10.0.0.1", "a_b.c"])
_PORTS = st.sampled_from(["", ":80", ":443", ":8080", ":"])
_PAIRS = st.lists(st.tuples(_TEXT, _TEXT), max_size=6)


@st.composite
def addresses(draw: st.DrawFn) -> str:
    path = "/".join(draw(st.lists(st.one_of(_TEXT, st.sampled_from([".", "..", "%2e", "%zz", "%C3%A9"])), max_size=5)))
    query = "&".join("=".join(pair) for pair in draw(_PAIRS))
    scheme, host, port = draw(st.sampled_from(["http", "HTTPS"])), draw(_HOSTS), draw(_PORTS)
    return f"{scheme}://{host}{port}/{path}?{query}#{draw(_TEXT)}"


@given(addresses())
def test_a_canonical_form_is_its_own_canonical_form(url: str) -> None:
    try:
        canonical = canonicalize_url(url)
    except BadInput:
        return
    assert canonicalize_url(canonical) == canonical
    assert canonical.isascii()
    assert canonical.isprintable()
    assert len(canonical) <= LONGEST_URL


@given(_PAIRS, st.randoms(use_true_random=False))
def test_the_order_of_parameters_does_not_matter(pairs: list[tuple[str, str]], dice: object) -> None:
    encoded = [
        f"{quote(name, errors='replace', safe='')}={quote(value, errors='replace', safe='')}" for name, value in pairs
    ]
    shuffled = list(encoded)
    dice.shuffle(shuffled)  # type: ignore[attr-defined]
    assert canonicalize_url("https://e.com/?" + "&".join(encoded)) == canonicalize_url(
        "https://e.com/?" + "&".join(shuffled)
    )


@given(st.text())
def test_any_text_is_either_an_address_or_refused(text: str) -> None:
    for url in (text, f"http://{text}", f"http://example.com/{text}"):
        try:
            assert canonicalize_url(url).startswith(("http://", "https://"))
        except BadInput:
            continue
