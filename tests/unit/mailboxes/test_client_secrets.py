"""The client-secrets file: the right one is read, and every wrong one is named with its field and the remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from postroom.domain.errors import BadInput
from postroom.mailboxes.browser_login import read_client_secrets

GOOD: dict[str, Any] = {
    "client_id": "1234.apps.googleusercontent.com",
    "client_secret": "GOCSPX-secret-of-the-app",
    "auth_uri": "https://accounts.google.com/o/oauth2/auth",
    "token_uri": "https://oauth2.googleapis.com/token",
}


def test_the_file_of_a_desktop_app_is_read_and_its_secret_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "secrets.json"
    path.write_text(json.dumps({"installed": GOOD | {"project_id": "mine", "redirect_uris": ["http://localhost"]}}))
    client = read_client_secrets(path)
    assert client.client_id == GOOD["client_id"]
    assert client.token_uri == GOOD["token_uri"]
    assert GOOD["client_secret"] not in repr(client)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "is not JSON; in Google's console"),
        ("<html>", "is not JSON"),
        ("[" * 50_000, "is not JSON"),
        ("[]", "is JSON but no client-secrets file"),
        ("{}", "field `installed` is missing"),
        (json.dumps({"web": GOOD}), "field `web`: this is a client of type Web application"),
        (
            json.dumps({"type": "service_account", "private_key": "x"}),
            "field `type`: this is the key of a service account",
        ),
        (json.dumps({"refresh_token": "1//x", "client_id": "x"}), "field `refresh_token`: these are a user's tokens"),
        (json.dumps({"installed": []}), "field `installed` is not an object"),
        (json.dumps({"installed": {**GOOD, "client_id": ""}}), "field `installed.client_id` is missing or empty"),
        (json.dumps({"installed": {**GOOD, "client_id": "\ud800"}}), "field `installed.client_id` holds characters"),
        (json.dumps({"installed": {**GOOD, "token_uri": "https://a..b"}}), "is not a web address"),
        (json.dumps({"installed": {**GOOD, "client_secret": 7}}), "field `installed.client_secret` is missing"),
        (json.dumps({"installed": {**GOOD, "auth_uri": "ftp://x"}}), "field `installed.auth_uri`: 'ftp://x' is not"),
        (
            json.dumps({"installed": {**GOOD, "token_uri": "http://evil.example/token"}}),
            "field `installed.token_uri`: 'http://evil.example/token' would send secrets unencrypted",
        ),
        (" " * 70_000, "is too large"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name_the_field_and_what_to_do(
    tmp_path: Path, content: str, problem: str
) -> None:
    path = tmp_path / "secrets.json"
    path.write_text(content)
    with pytest.raises(BadInput) as refusal:
        read_client_secrets(path)
    assert refusal.value.field == str(path)
    assert problem in refusal.value.problem


@pytest.mark.parametrize("missing", GOOD)
def test_a_missing_field_is_named(tmp_path: Path, missing: str) -> None:
    path = tmp_path / "secrets.json"
    path.write_text(json.dumps({"installed": {name: value for name, value in GOOD.items() if name != missing}}))
    with pytest.raises(BadInput, match=rf"field `installed\.{missing}` is missing or empty"):
        read_client_secrets(path)


def test_a_file_that_is_not_there_or_is_a_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read: No such file"):
        read_client_secrets(tmp_path / "nothing.json")
    with pytest.raises(BadInput, match="cannot be read: Is a directory"):
        read_client_secrets(tmp_path)
