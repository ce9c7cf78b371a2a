"""Reads the client-secrets file that Google's console issues for a desktop app. A wrong file is refused with the
reason.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from postroom.domain.errors import BadInput
from postroom.mailboxes.reachability import require_safe_url

_LARGEST = 64 * 1024
_LONGEST_PROJECT = 100
_HOW_TO_GET_ONE = (
    "in Google's console, under Google Auth Platform > Clients, create a client of type Desktop app and download its "
    "JSON"
)
_TOO_LARGE = f"is too large to be a client-secrets file; {_HOW_TO_GET_ONE}"


@dataclass(frozen=True)
class ClientSecrets:
    """The OAuth client of this installation."""

    client_id: str
    client_secret: str = field(repr=False)
    auth_uri: str
    token_uri: str
    project: str = ""
    """The project at Google that it belongs to, where the file names it."""


def read_client_secrets(path: Path) -> ClientSecrets:
    """The app in this file; anything else is refused with the file's name and the field."""
    try:
        if path.stat().st_size > _LARGEST:
            raise BadInput(str(path), _TOO_LARGE)
        content = path.read_bytes()
    except OSError as error:
        raise BadInput(str(path), f"cannot be read: {error.strerror}") from None
    return parse_client_secrets(content, str(path))


def parse_client_secrets(content: bytes, name: str) -> ClientSecrets:
    """The same from its content; `name` is what a refusal calls it."""
    parsed = _parse(content, name)
    if "installed" not in parsed:
        raise BadInput(name, _not_a_desktop_app(parsed))
    app = parsed["installed"]
    if not isinstance(app, dict):
        raise BadInput(name, "field `installed` is not an object; download the file again")
    return ClientSecrets(
        client_id=_text(name, app, "client_id"),
        client_secret=_text(name, app, "client_secret"),
        auth_uri=_address(name, app, "auth_uri"),
        token_uri=_address(name, app, "token_uri"),
        project=_project(app.get("project_id")),
    )


def _parse(content: bytes, name: str) -> dict[str, Any]:
    if len(content) > _LARGEST:
        raise BadInput(name, _TOO_LARGE)
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError):
        raise BadInput(name, f"is not JSON; {_HOW_TO_GET_ONE}") from None
    if not isinstance(parsed, dict):
        raise BadInput(name, f"is JSON but no client-secrets file; {_HOW_TO_GET_ONE}")
    return parsed


def _not_a_desktop_app(content: dict[str, Any]) -> str:
    if "web" in content:
        return f"field `web`: this is a client of type Web application, which cannot log in here; {_HOW_TO_GET_ONE}"
    if content.get("type") == "service_account":
        return f"field `type`: this is the key of a service account, which has no mailbox of its own; {_HOW_TO_GET_ONE}"
    if "refresh_token" in content:
        return f"field `refresh_token`: these are a user's tokens, not an app's client secrets; {_HOW_TO_GET_ONE}"
    return f"field `installed` is missing; {_HOW_TO_GET_ONE}"


def _text(whole: str, app: dict[str, Any], name: str) -> str:
    value = app.get(name)
    if not isinstance(value, str) or not value.strip():
        raise BadInput(whole, f"field `installed.{name}` is missing or empty; download the file again")
    if not value.strip().isprintable():
        raise BadInput(whole, f"field `installed.{name}` holds characters that have no shape; download the file again")
    return value.strip()


def _project(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= _LONGEST_PROJECT and value.isprintable() else ""


def _address(whole: str, app: dict[str, Any], name: str) -> str:
    try:
        return require_safe_url(_text(whole, app, name), name)
    except BadInput as error:
        if error.field != name:
            raise
        raise BadInput(whole, f"field `installed.{name}`: {error.problem}") from None
