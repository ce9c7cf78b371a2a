"""`--host` and `--port` of the commands that serve: they go before the settings, and never open a home to a network in
the clear."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom.cli.services import _listening_at
from postroom.domain.errors import BadInput
from postroom.settings import DashboardSettings, Settings, SwitchboardSettings
from tests.support.commands import in_this_process

HERE = Settings(home=Path("/nowhere"), switchboard=SwitchboardSettings(host="127.0.0.2", port=8471))


def address(host: str | None, port: int | None, settings: Settings = HERE, *, behind_proxy: bool = False) -> str:
    chosen = _listening_at(host, port, behind_proxy=behind_proxy)(settings).switchboard
    return f"{chosen.host}:{chosen.port}"


def test_an_option_goes_before_its_setting_and_leaves_the_other_alone() -> None:
    assert address(None, None) == "127.0.0.2:8471"
    assert address("::1", None) == "::1:8471"
    assert address("localhost", 0) == "127.0.0.1:0"


def test_an_address_that_others_reach_needs_tls_or_a_proxy() -> None:
    with pytest.raises(BadInput, match="has no TLS of its own"):
        address("0.0.0.0", None)  # noqa: S104 - that it is refused is the point
    assert address("192.168.1.5", 80, behind_proxy=True) == "192.168.1.5:80"
    public = HERE.model_copy(update={"dashboard": DashboardSettings(url="https://post.example.org")})
    assert address("192.168.1.5", 80, public) == "192.168.1.5:80"
    plain = HERE.model_copy(update={"dashboard": DashboardSettings(url="http://post.example.org")})
    with pytest.raises(BadInput, match="has no TLS of its own"):
        address("192.168.1.5", 80, plain)


@pytest.mark.parametrize("name", ["up", "switchboard"])
def test_a_refusal_names_the_option_and_what_to_do(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROOM_HOME", str(tmp_path))
    done = in_this_process(name, "--host", "192.168.1.5")
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: --host: other machines can reach 192.168.1.5")
    assert "--behind-proxy" in done.stderr
    assert in_this_process(name, "--host", "post.example.org").stderr.startswith("error: --host: 'post.example.org' is")


@pytest.mark.req("UX-2")
def test_simulated_mailboxes_are_offered_with_dev_or_by_the_setting() -> None:
    on = HERE.model_copy(update={"dashboard": DashboardSettings(dev=True)})

    def offers(settings: Settings, *, dev: bool) -> bool:
        return _listening_at(None, None, behind_proxy=False, dev=dev)(settings).dashboard.dev

    assert [offers(HERE, dev=False), offers(HERE, dev=True), offers(on, dev=False)] == [False, True, True]
