"""The files in deploy/ as far as they can be checked without their hosts: every command and variable in them exists."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from postroom import settings
from tests.support.handbook import ROOT, read_against_the_commands

DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
INSTALLED = "/opt/postroom/.venv/bin/postroom"
OURS = re.compile(r"(POSTROOM|CONNECTOR|BACKFILL)_[A-Z_]+")


def known_variables() -> set[str]:
    ours = {setting.variable for _, group in settings.reference() for setting in group}
    return ours | {"CONNECTOR_ACCOUNT"}


def unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[method-assign, assignment]
    parser.read_string(path.read_text())
    return parser


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_runs_a_command_that_exists_and_may_do_little_else(path: Path) -> None:
    service = unit(path)["Service"]
    words = shlex.split(service["ExecStart"].replace("%i", "you@gmail.com"))
    if words[0] == "/bin/sh":
        words = shlex.split(words[2])[1:]
    assert words[0] == INSTALLED
    read_against_the_commands(["postroom", *words[1:]])
    hardened = {"NoNewPrivileges": "yes", "ProtectSystem": "strict", "ProtectHome": "yes", "PrivateTmp": "yes"}
    assert {key: service[key] for key in hardened} == hardened
    assert service["CapabilityBoundingSet"] == ""
    assert service["LimitCORE"] == "0"
    assert {"MemoryMax", "TasksMax", "OOMPolicy"} <= set(service)
    assert service["User"] == "postroom"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    """The program is not where the units expect it, so they are pointed to one that is there."""
    names = []
    for path in (DEPLOY / "systemd").iterdir():
        name = path.name.replace("connector@", "connector@you@gmail.com").replace("worker@", "worker@1")
        (tmp_path / name).write_text(path.read_text().replace(INSTALLED, sys.executable))
        names.append(str(tmp_path / name))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *names], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def compose() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return content


def test_the_services_of_the_compose_file_run_commands_that_exist_with_settings_that_exist() -> None:
    for name, service in compose()["services"].items():
        if name == "database":
            continue
        command = [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", str(word)) for word in service["command"]]
        read_against_the_commands(["postroom", *command])
        assert set(service["environment"]) <= known_variables(), name
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]


def test_nothing_but_loopback_is_published() -> None:
    published = [port for service in compose()["services"].values() for port in service.get("ports", [])]
    assert published == ["127.0.0.1:8470:8470"]


def test_the_dockerfile_copies_what_is_there_and_starts_a_command_that_exists() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert f"!{source}" in ignored, f"{source} is kept out of the build"
    entry, default = (yaml.safe_load(line) for line in re.findall(r"^(?:ENTRYPOINT|CMD) (\[.*\])$", text, re.MULTILINE))
    read_against_the_commands([*entry, *default])
    assert re.search(r"^USER postroom$", text, re.MULTILINE)


@pytest.mark.parametrize("page", ["docs/deploy.md", "docs/operations.md", "docs/security.md", "docs/connector.md"])
def test_every_variable_that_a_page_names_exists(page: str) -> None:
    named = {match[0] for match in OURS.finditer((ROOT / page).read_text("utf-8"))}
    assert named <= known_variables()


def test_every_metric_that_operations_name_is_one_that_the_code_has() -> None:
    """As Prometheus shows them: dots become underscores, units and kinds are added."""
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    known = {name.replace(".", "_") for name in re.findall(r'"((?:postroom|butlers)\.[a-z_.]+)"', source)}
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    for name in re.findall(r"^\| `((?:postroom|butlers)_[a-z_]+)`", page, re.MULTILINE):
        assert re.sub(r"_(total|seconds)$", "", name) in known, name
