"""Optional parts: whether they are here, and the one sentence that says how to add one."""

from __future__ import annotations

import sys

import pytest

from postroom.domain.errors import Fatal
from postroom.domain.extras import Extra, ExtraMissing, is_installed, require
from postroom.domain.model_costs import tariff_for

pytestmark = pytest.mark.req("HW-7")


def test_a_missing_extra_is_one_sentence_with_the_command_that_adds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    require(Extra.WEB, "Following web sources")
    monkeypatch.setitem(sys.modules, "trafilatura", None)
    assert not is_installed(Extra.WEB)
    with pytest.raises(ExtraMissing) as missing:
        require(Extra.WEB, "Following web sources")
    assert missing.value.message == "Following web sources needs the web extra: pip install 'postroom[web]'"
    assert isinstance(missing.value, Fatal)


def test_without_the_price_list_no_published_price_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tariff_for("openai", "gpt-5-mini") is not None
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    assert tariff_for("openai", "gpt-5-mini") is None
