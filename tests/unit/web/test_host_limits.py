"""How hosts are treated, by what their sources say."""

from __future__ import annotations

import pytest

from postroom.settings import WebSettings
from postroom.web.fetching.interface import DomainLimits
from postroom.web.fetching.politeness import limits_of, private_hosts
from postroom.web.sources import ConfiguredSources, parse_sources

WEB = WebSettings(min_delay_ms=1_000, max_delay_ms=2_000, max_concurrent=4)


def source(slug: str, domains: list[str], url: str, more: str = "") -> str:
    endpoint = f'[[source.endpoint]]\nname = "e"\nmode = "sitemap"\nurl = "{url}"\n'
    return f'[[source]]\nslug = "{slug}"\ndomains = {domains}\n{more}\n{endpoint}'


def sources(*texts: str) -> ConfiguredSources:
    return parse_sources("".join(texts))


@pytest.mark.req("WB-3")
def test_a_host_that_two_sources_name_is_treated_as_the_kinder_one_says() -> None:
    both = sources(
        source("a", ["e.example"], "https://e.example/"),
        source("b", ["www.e.example"], "https://www.e.example/", "min_delay_ms = 8000\nmax_concurrent = 1"),
    )
    of = limits_of(both, WEB)
    assert of("www.e.example") == DomainLimits("e.example", 8.0, 8.0, 1)
    assert of("e.example") == DomainLimits("e.example", 1.0, 2.0, 4)
    assert of("other.example") == DomainLimits("other.example", 1.0, 2.0, 4)


@pytest.mark.req("WB-13")
def test_a_private_host_is_allowed_on_the_ports_of_its_endpoints_only() -> None:
    both = sources(
        source("a", ["127.0.0.1"], "http://127.0.0.1:8080/s.xml", "allow_private = true"),
        source("b", ["in.example"], "https://in.example/s.xml", "allow_private = true"),
        source("c", ["public.example"], "https://public.example/"),
    )
    assert private_hosts(both) == {"127.0.0.1:8080", "in.example:443"}


@pytest.mark.req("WB-13")
def test_a_page_may_redirect_within_its_source_only() -> None:
    both = sources(
        source("a", ["a.example", "b.example"], "https://a.example/"), source("c", ["c.example"], "https://c.example/")
    )
    assert both.may_lead("a.example", "www.b.example")
    assert both.may_lead("gone.example", "gone.example")
    assert not both.may_lead("a.example", "c.example")
    assert not both.may_lead("gone.example", "a.example")
