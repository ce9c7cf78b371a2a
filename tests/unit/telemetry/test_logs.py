"""Logs: one event a line, and never a secret."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.telemetry import logs
from postroom.telemetry.logs import MASK, Redactor

SECRETS = [
    "ya29.a0AfH6SMBx_x-y",
    "1//0gABCDEFGHIJKLMNOPQRSTUV",
    "prt_0123456789abcdefghij",
    "sk-" + "0123456789abcdefghij",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
]


@pytest.fixture
def lines() -> io.StringIO:
    stream = io.StringIO()
    logs.configure(level="info", secrets=["configured-secret"], stream=stream)
    return stream


def events(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_json_line_with_its_context(lines: io.StringIO) -> None:
    logs.bind(job="j-1")
    logs.get("postroom.test").info("job.done", result="line one\nline two")
    [event] = events(lines)
    assert (event["event"], event["job"], event["result"]) == ("job.done", "j-1", "line one\nline two")
    assert (event["level"], event["logger"]) == ("info", "postroom.test")
    assert event["timestamp"].endswith("Z")


@pytest.mark.req("PL-6")
@pytest.mark.parametrize("secret", SECRETS)
def test_credentials_are_masked_wherever_they_stand(lines: io.StringIO, secret: str) -> None:
    log = logs.get("postroom.test")
    log.warning(f"failed with {secret}", detail={"nested": [secret, (f"x {secret} y",)]}, other=ValueError(secret))
    try:
        raise RuntimeError(f"refused: {secret}")
    except RuntimeError:
        log.exception("crash")
    logging.getLogger("some.library").error("GET /x?key=%s", secret)
    assert secret not in lines.getvalue()
    assert len(events(lines)) == 3


@pytest.mark.req("PL-6")
@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer abc.def-ghi",
        "Authorization: Basic dXNlcjpwYXNz",
        "postgresql://user:p4ssw0rd-x@host/db",
        "https://oauth2/token?refresh_token=abcdefgh&code=4/0Axyz",
        '{"client_secret": "GOCSPX-abc", "access_token":"zzz"}',
        "uses configured-secret here",
    ],
)
def test_credentials_in_headers_addresses_and_bodies_are_masked(text: str) -> None:
    cleaned = Redactor(["configured-secret"]).text(text)
    for part in ("abc.def", "dXNlcjpwYXNz", "p4ssw0rd", "abcdefgh", "4/0Axyz", "GOCSPX", "zzz", "configured-secret"):
        assert part not in cleaned
    assert MASK in cleaned


@pytest.mark.req("PL-6")
@pytest.mark.parametrize(
    "name", ["token", "access_token", "client-secret", "Authorization", "db.password", "api_key", "apikey", "cookies"]
)
def test_fields_with_telling_names_are_masked_whatever_they_hold(name: str) -> None:
    assert Redactor().field(name, {"any": "thing"}) == MASK


@pytest.mark.parametrize("name", ["tokens_used", "token_count", "monkey", "secretary", "passwordless"])
def test_fields_that_only_sound_similar_are_kept(name: str) -> None:
    assert Redactor().field(name, 12) == 12


@given(st.text())
def test_redaction_never_fails_and_is_stable(text: str) -> None:
    redactor = Redactor()
    once = redactor.text(text)
    assert redactor.text(once) == once


def test_libraries_are_heard_only_when_something_is_wrong(lines: io.StringIO) -> None:
    logging.getLogger("some.library").info("chatter")
    logging.getLogger("some.library").warning("trouble")
    assert [event["event"] for event in events(lines)] == ["trouble"]


def test_lines_for_a_terminal_are_redacted_too() -> None:
    stream = io.StringIO()
    logs.configure(format="console", stream=stream)
    logs.get("postroom.test").info("job.done", detail=f"with {SECRETS[0]}")
    assert "job.done" in stream.getvalue()
    assert SECRETS[0] not in stream.getvalue()


def test_what_is_below_the_level_is_not_written(lines: io.StringIO) -> None:
    logs.get("postroom.test").debug("job.seen")
    assert events(lines) == []


@pytest.mark.req("PL-6")
@pytest.mark.parametrize("form", ["json", "console"])
def test_an_exception_that_is_handed_over_is_shown_with_its_traceback_and_without_its_variables(form: str) -> None:
    stream = io.StringIO()
    logs.configure(stream=stream, format=form, secrets=["configured-secret"])

    def fail(mail: str) -> None:
        raise ValueError("the cause, and configured-secret")

    mail = " ".join(["Dear", "Ann"])  # not as a line of source, which a traceback quotes
    try:
        fail(mail)
    except ValueError as error:
        logs.get("postroom.test").error("job.crashed", exc_info=error)
    said = stream.getvalue()
    assert "Traceback (most recent call last)" in said
    assert "ValueError: the cause" in said
    assert mail not in said
    assert "configured-secret" not in said
