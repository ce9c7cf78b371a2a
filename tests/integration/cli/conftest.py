"""Commands of these tests find an installation whose database was made before."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.databases import install


@pytest.fixture
def home(home: Path) -> Path:
    return install(home)
