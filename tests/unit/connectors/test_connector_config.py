"""What can be set for a connector, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from postroom import settings
from postroom.domain.errors import BadInput
from postroom.settings import ConnectorSettings

Reading = Callable[[Mapping[str, str]], ConnectorSettings]


@pytest.fixture
def connector(home: Path, monkeypatch: pytest.MonkeyPatch) -> Reading:
    """Reads the settings of a connector from these variables."""

    def read(variables: Mapping[str, str]) -> ConnectorSettings:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return settings.load(is_connector=True).connector

    return read


@pytest.mark.req("BF-11", "BF-14")
def test_the_defaults_are_those_of_the_spec(connector: Reading) -> None:
    assert connector({}) == ConnectorSettings()
    assert (ConnectorSettings().backfill_poll_s, ConnectorSettings().progress_interval) == (60, 50)
    assert ConnectorSettings().contact_max_age_s == 3_600


@pytest.mark.req("BF-11", "BF-14", "PQ-4", "PQ-5")
def test_everything_is_read_from_its_variable(connector: Reading) -> None:
    given = connector(
        {
            "CONNECTOR_TOKEN": "prt_secret",
            "CONNECTOR_SWITCHBOARD_URL": "http://switchboard:8470/mcp",
            "CONNECTOR_BACKFILL_POLL_INTERVAL_S": "90",
            "CONNECTOR_BACKFILL_PROGRESS_INTERVAL": "10",
            "CONNECTOR_CONTACT_MAX_AGE_S": "600",
            "CONNECTOR_CONTACT_PROOF": "not_failed",
            "CONNECTOR_RECEIVING_SERVERS": "mx.home.example, mx2.home.example",
            "CONNECTOR_ALIASES": "Me@Home.example,",
        }
    )
    assert given.token is not None
    assert (given.token.get_secret_value(), given.switchboard_url) == ("prt_secret", "http://switchboard:8470/mcp")
    assert (given.backfill_poll_s, given.progress_interval) == (90, 10)
    assert (given.contact_max_age_s, given.contact_proof) == (600, "not_failed")
    assert given.believed_servers == ("mx.home.example", "mx2.home.example")
    assert given.own_addresses == ("me@home.example",)


def test_an_empty_variable_sets_nothing(connector: Reading) -> None:
    assert connector({"CONNECTOR_TOKEN": "", "CONNECTOR_SWITCHBOARD_URL": ""}) == ConnectorSettings()


@pytest.mark.req("BF-11")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CONNECTOR_BACKFILL_POLL_INTERVAL_S", "59.9"),
        ("CONNECTOR_BACKFILL_POLL_INTERVAL_S", "0"),
        ("CONNECTOR_BACKFILL_POLL_INTERVAL_S", "nan"),
        ("CONNECTOR_BACKFILL_POLL_INTERVAL_S", "often"),
        ("CONNECTOR_BACKFILL_PROGRESS_INTERVAL", "0"),
        ("CONNECTOR_BACKFILL_PROGRESS_INTERVAL", "5000"),
        ("CONNECTOR_CONTACT_PROOF", "maybe"),
        ("CONNECTOR_CONTACT_MAX_AGE_S", "1e400"),
        ("CONNECTOR_ALIASES", "nobody"),
        ("CONNECTOR_LIVE_POLL_INTERVAL_S", "-1"),
        ("CONNECTOR_BACKFILL_POL_INTERVAL_S", "60"),
    ],
)
def test_a_bad_value_is_refused_with_its_name(connector: Reading, name: str, value: str) -> None:
    with pytest.raises(BadInput) as caught:
        connector({name: value})
    assert caught.value.field == name


def test_a_variable_of_another_program_is_in_nobodys_way_but_the_connectors(
    connector: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONNECTOR_OF_ANOTHER_PROGRAM", "1")
    assert settings.load().connector == ConnectorSettings()
    with pytest.raises(BadInput, match="CONNECTOR_OF_ANOTHER_PROGRAM"):
        connector({})
