"""The base install: everything imports without the extras, and what needs one says which command adds it."""

from __future__ import annotations

import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

from postroom.accounts.doctor import judge_extras
from postroom.db import Database
from postroom.demo.demo_session import _troubles
from postroom.demo.story import STORY
from postroom.domain.checkups import CheckVerdict
from postroom.domain.clock import ManualClock
from postroom.domain.errors import Retryable
from postroom.domain.extras import _BRINGS, Extra
from postroom.queue import JobCatalogue, JobContext, JobQueue, JobType, NewJob
from postroom.settings import ModelSettings, Settings
from tests.support.commands import in_this_process
from tests.support.dashboards import Site, open_site, text_of
from tests.support.queues import run_until_idle

pytestmark = pytest.mark.req("HW-7")

OF_EXTRAS = (
    "postroom.archive.meaning",
    "postroom.archive.postgres",
    "postroom.db.postgres",
    "postroom.db.prepared_postgres",
    "postroom.triage.chat_completions",
    "postroom.triage.model_client",
    "postroom.web.extraction",
    "postroom.reading",
)
"""Loaded only by what has asked for their extra."""

IMPORT_ALL = """
import pkgutil, sys
from importlib import import_module
sys.modules.update(dict.fromkeys({missing!r}))
import postroom
for module in pkgutil.walk_packages(postroom.__path__, "postroom."):
    if not module.name.startswith({left_out!r}) and ".migrations" not in module.name and "__main__" not in module.name:
        import_module(module.name)
"""


def without(extra: Extra, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in _BRINGS[extra]:
        monkeypatch.setitem(sys.modules, module, None)


def test_every_module_of_the_base_install_imports_without_any_extra() -> None:
    missing = [module for modules in _BRINGS.values() for module in modules]
    code = IMPORT_ALL.format(missing=missing, left_out=OF_EXTRAS)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_database_on_postgresql_asks_for_its_extra(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROOM_DATABASE__URL", "postgresql://user@127.0.0.1/mail")
    without(Extra.POSTGRES, monkeypatch)
    done = in_this_process("account", "list")
    sentence = "A database.url of PostgreSQL needs the postgres extra: pip install 'postroom[postgres]'"
    assert (done.code, done.stderr) == (1, f"error: {sentence}\n")
    looked = in_this_process("doctor")
    assert looked.code == 1
    assert sentence in looked.stdout


def test_commands_that_follow_web_sources_ask_for_their_extra(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKFILL_ENABLED", "true")
    without(Extra.WEB, monkeypatch)
    assert in_this_process("web", "sources").code == 0
    done = in_this_process("web", "backfill", "--mode", "sitemap")
    assert (done.code, done.stderr) == (
        1,
        "error: Following web sources needs the web extra: pip install 'postroom[web]'\n",
    )


async def test_the_page_of_web_sources_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_site(tmp_path / "home") as site:
        assert "needs the web extra" not in text_of((await site.get("/web")).text)
        without(Extra.WEB, monkeypatch)
        await _is_said(site, "/web")
        await _is_said(site, "/web/runs/new")
        refused = await site.post("/web/look")
        assert refused.status_code == 409
        assert "pip install 'postroom[web]'" in unescape(text_of(refused.text))


async def _is_said(site: Site, path: str) -> None:
    page = await site.get(path)
    assert page.status_code == 200
    assert "Following web sources needs the web extra: pip install 'postroom[web]'" in unescape(text_of(page.text))


def test_the_doctor_fails_only_where_the_settings_need_what_is_missing(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    nothing = judge_extras(settings, lambda extra: False)
    assert nothing.verdict is CheckVerdict.OK
    assert all(extra.command in nothing.text for extra in Extra)
    with_model = settings.model_copy(update={"model": ModelSettings(provider="openai", name="gpt-5-mini")})
    needed = judge_extras(with_model, lambda extra: extra is not Extra.MODELS)
    assert needed.verdict is CheckVerdict.FAILED
    assert "The settings need models." in needed.text
    (tmp_path / "sources.toml").touch()
    assert judge_extras(settings, lambda extra: extra is not Extra.WEB).verdict is CheckVerdict.FAILED
    assert judge_extras(with_model, lambda extra: True).verdict is CheckVerdict.OK


def test_a_step_of_the_story_whose_extra_is_missing_is_skipped_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [step.skipped for step in STORY] == [None] * len(STORY)
    without(Extra.WEB, monkeypatch)
    without(Extra.MODELS, monkeypatch)
    skipped = {step.title: step.skipped for step in STORY if step.skipped}
    assert skipped == {
        "Old mail, under a budget": "skipped: this step needs the models extra: pip install 'postroom[models]'",
        "A web source": "skipped: this step needs the web extra: pip install 'postroom[web]'",
    }


async def test_a_story_that_waits_in_vain_tells_what_its_jobs_say(database: Database, clock: ManualClock) -> None:
    fetch = JobType("web.fetch")
    queue = JobQueue(database, JobCatalogue([fetch]), clock)

    async def broken(context: JobContext) -> None:
        raise Retryable("The process that reads pages does not start: No module named 'lxml_html_clean'")

    await queue.enqueue(NewJob(fetch.name), NewJob(fetch.name))
    await run_until_idle(queue, {fetch.name: broken})
    [told] = await database.read(_troubles)
    assert told.startswith("web.fetch: ")
    assert "No module named 'lxml_html_clean'" in told
