"""How each host wants to be treated: what its source says, else the settings; of several sources, the kindest."""

from __future__ import annotations

from urllib.parse import urlsplit

from postroom.settings import WebSettings
from postroom.websources.config import Source, Sources
from postroom.websources.fetching.ports import DomainLimits, LimitsOf
from postroom.websources.urls import host_of

_PORTS = {"http": 80, "https": 443}


def limits_of(sources: Sources, web: WebSettings) -> LimitsOf:
    def of(host: str) -> DomainLimits:
        named = [_limits(source, web) for source in sources.of_host(host)] or [_limits(None, web)]
        least, most, concurrent = (list(column) for column in zip(*named, strict=True))
        return DomainLimits(_paced(sources, host), max(least) / 1_000, max(*least, *most) / 1_000, min(concurrent))

    return of


def private_hosts(sources: Sources) -> frozenset[str]:
    """Hosts that their source allows to have a private address, each on the ports of the source's endpoints only: a
    site on this machine does not open the rest of the machine."""
    allowed: set[str] = set()
    for source in sources:
        if source.allow_private:
            urls = [urlsplit(endpoint.url) for endpoint in source.endpoint]
            ports = {url.port or _PORTS[url.scheme] for url in urls}
            hosts = {*source.domains, *(host_of(endpoint.url) for endpoint in source.endpoint)}
            allowed |= {f"{host}:{port}" for host in hosts for port in ports}
    return frozenset(allowed)


def _limits(source: Source | None, web: WebSettings) -> tuple[int, int, int]:
    if source is None:
        return web.min_delay_ms, web.max_delay_ms, web.max_concurrent
    least = web.min_delay_ms if source.min_delay_ms is None else source.min_delay_ms
    most = web.max_delay_ms if source.max_delay_ms is None else source.max_delay_ms
    return least, most, source.max_concurrent or web.max_concurrent


def _paced(sources: Sources, host: str) -> str:
    """The hosts of one domain are one server to be kind to, as far as anybody knows."""
    domains = [domain for source in sources.of_host(host) for domain in source.domains]
    return min((domain for domain in domains if host == domain or host.endswith(f".{domain}")), key=len, default=host)
