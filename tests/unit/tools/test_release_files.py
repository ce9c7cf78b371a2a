"""What is published beside the code: lock files, the bill of materials, and the judge of a wheel's story."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from tools.sbom import LOCK, ROOT, bill, locked
from tools.try_wheel import Trial, judged

from postroom.demo.story import STORY
from postroom.domain.extras import Extra

pytestmark = pytest.mark.req("HW-7")

STEPS = "\n".join(f"{number}. {step.title}" for number, step in enumerate(STORY, start=1))
MISSING = "\n".join(f"skipped: this step needs the {extra} extra: {extra.command}" for extra in Extra)


def wanted(extra: str) -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {Requirement(line).name for line in project["optional-dependencies"][extra]}


def test_the_bill_of_materials_is_valid_and_names_every_locked_package() -> None:
    text = LOCK.read_text()
    made = bill(locked(text))
    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(made))
    assert problem is None, str(problem)[:500]
    named = {f"{each['name']}=={each['version']}" for each in made["components"]}
    assert named == set(re.findall(r"^[a-z0-9][^\s;\\]*", text, re.MULTILINE))
    assert len(named) > 80


def test_the_bill_of_materials_tells_nothing_of_the_machine_and_is_the_same_each_time() -> None:
    made = json.dumps(bill(locked(LOCK.read_text())))
    assert made == json.dumps(bill(locked(LOCK.read_text())))
    assert "://" not in made
    assert str(Path.home()) not in made
    assert str(ROOT) not in made


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-dev.lock", "requirements-bench.lock"])
def test_a_lock_file_names_no_registry(name: str) -> None:
    assert "://" not in (ROOT / name).read_text()


def test_the_lock_of_an_installation_has_every_extra_and_the_one_for_developers_too() -> None:
    assert wanted("all") == wanted("dev") & {"postroom"} == {"postroom"}
    packages = {package.name for package in locked(LOCK.read_text())}
    assert wanted("web") | wanted("models") | wanted("postgres") <= packages
    assert packages <= {package.name for package in locked((ROOT / "requirements-dev.lock").read_text())}


def test_cleaning_html_is_asked_for_by_a_name_that_every_pip_understands() -> None:
    assert "lxml-html-clean" in wanted("web")


@pytest.mark.parametrize(
    ("extra", "story", "problem"),
    [
        ("all", STEPS, None),
        ("all", f"{STEPS}\n{MISSING}", "a step was skipped"),
        ("", f"{STEPS}\n{MISSING}", None),
        ("", STEPS, "not named as missing: web, models"),
        ("", "1. Ten years of mail", "these steps are missing: 2. Eight in the morning"),
    ],
)
def test_a_wheels_story_is_judged_by_its_steps_and_by_what_it_skips(
    extra: str, story: str, problem: str | None
) -> None:
    said = judged(Trial("pip", extra), story)
    assert said == problem or (said or "").startswith(problem or "-")
