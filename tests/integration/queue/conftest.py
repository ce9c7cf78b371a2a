"""A database on PostgreSQL, and a rival for its locks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.support.databases import PostgresFactory


@pytest.fixture
def url(postgres_factory: PostgresFactory) -> str:
    return postgres_factory.url()


@pytest.fixture
def rival(url: str) -> Iterator[psycopg.Connection[Any]]:
    """Another process's connection, in a transaction that it holds open for as long as it likes."""
    with psycopg.connect(url) as connection:
        yield connection
