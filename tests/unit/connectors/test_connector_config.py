"""What can be set for a connector, and what is refused."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from postroom.connectors.config import (
    DEFAULT_SWITCHBOARD,
    SWITCHBOARD_VARIABLE,
    TOKEN_VARIABLE,
    VARIABLES,
    ConnectorConfig,
    config_from,
)
from postroom.connectors.priority import ContactProof
from postroom.domain.errors import BadInput


@pytest.mark.req("BF-11", "BF-14")
def test_the_defaults_are_those_of_the_spec() -> None:
    assert config_from({"PATH": "/bin", "CONNECTOR_TOKEN": "x"}) == ConnectorConfig()
    assert (ConnectorConfig().backfill_poll_s, ConnectorConfig().progress_interval) == (60, 50)
    assert ConnectorConfig().contact_max_age == timedelta(minutes=60)


@pytest.mark.req("BF-11", "BF-14", "PQ-4", "PQ-5")
def test_everything_is_read_from_its_variable() -> None:
    given = config_from(
        {
            "CONNECTOR_BACKFILL_POLL_INTERVAL_S": "90",
            "CONNECTOR_BACKFILL_PROGRESS_INTERVAL": "10",
            "CONNECTOR_CONTACT_MAX_AGE_S": "600",
            "CONNECTOR_CONTACT_PROOF": "passed",
            "CONNECTOR_RECEIVING_SERVERS": "mx.home.example, mx2.home.example",
            "CONNECTOR_ALIASES": "Me@Home.example,",
        }
    )
    assert (given.backfill_poll_s, given.progress_interval) == (90, 10)
    assert (given.contact_max_age, given.contact_proof) == (timedelta(minutes=10), ContactProof.PASSED)
    assert given.receiving_servers == ("mx.home.example", "mx2.home.example")
    assert given.aliases == ("me@home.example",)


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
def test_a_bad_value_is_refused_with_its_name(name: str, value: str) -> None:
    with pytest.raises(BadInput) as caught:
        config_from({name: value})
    assert caught.value.field == name


def test_every_variable_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "connector.md").read_text()
    for name in (*VARIABLES, TOKEN_VARIABLE, SWITCHBOARD_VARIABLE, DEFAULT_SWITCHBOARD):
        assert f"`{name}`" in page
