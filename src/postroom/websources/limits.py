"""How each host wants to be treated: what its source says, else the settings."""

from __future__ import annotations

from postroom.settings import WebSettings
from postroom.websources.config import Source, Sources
from postroom.websources.fetching.ports import DomainLimits, LimitsOf
from postroom.websources.urls import host_of


def limits_of(sources: Sources, web: WebSettings) -> LimitsOf:
    def of(host: str) -> DomainLimits:
        source = sources.of_host(host)
        if source is None:
            return DomainLimits(host, web.min_delay_ms / 1_000, web.max_delay_ms / 1_000, web.max_concurrent)
        least = web.min_delay_ms if source.min_delay_ms is None else source.min_delay_ms
        most = web.max_delay_ms if source.max_delay_ms is None else source.max_delay_ms
        concurrent = source.max_concurrent or web.max_concurrent
        return DomainLimits(_paced(source, host), least / 1_000, max(least, most) / 1_000, concurrent)

    return of


def private_hosts(sources: Sources) -> frozenset[str]:
    """Hosts that their source allows to have a private address."""
    allowed = [source for source in sources if source.allow_private]
    hosts = {host_of(endpoint.url) for source in allowed for endpoint in source.endpoint}
    return frozenset(hosts.union(*(source.domains for source in allowed)))


def _paced(source: Source, host: str) -> str:
    """The hosts of one domain are one server to be kind to, as far as anybody knows."""
    return max((domain for domain in source.domains if host == domain or host.endswith(f".{domain}")), key=len)
