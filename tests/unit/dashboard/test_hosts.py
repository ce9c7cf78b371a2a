"""The names by which the dashboard may be called."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom.dashboard.security.gate import Hosts
from postroom.settings import DashboardSettings, Settings, SwitchboardSettings


def hosts(host: str = "127.0.0.1", url: str | None = None) -> Hosts:
    return Hosts.of(
        Settings(home=Path(), switchboard=SwitchboardSettings(host=host), dashboard=DashboardSettings(url=url))
    )


@pytest.mark.parametrize("host", ["127.0.0.1:8470", "localhost", "[::1]:1", "LocalHost:80"])
def test_on_loopback_it_is_called_by_loopback_names(host: str) -> None:
    assert hosts().knows(host)
    assert not hosts("192.0.2.7").knows(host)


@pytest.mark.parametrize(
    "host", ["", "evil.example", "127.0.0.1.evil.example:80", "localhost.", "[::1", "::1", ":8470"]
)
def test_other_names_are_not_known(host: str) -> None:
    assert not hosts().knows(host)


def test_on_another_address_it_is_called_by_that_address_and_its_public_name() -> None:
    public = hosts("192.0.2.7", "https://post.example.org:8443")
    assert public.knows("192.0.2.7:8470")
    assert public.knows("post.example.org:8443")
    assert not public.knows("post.example.org")
    assert public.is_secure
