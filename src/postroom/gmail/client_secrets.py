"""The file that Google's console gives for an app of type "Desktop app"; every way it can be the wrong one is named."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from postroom.domain.errors import BadInput
from postroom.gmail.reach import require_safe_url

_LARGEST = 64 * 1024
_HOW_TO_GET_ONE = (
    "in Google's console, under APIs & Services > Credentials, create an OAuth client of type Desktop app and download "
    "its JSON"
)


@dataclass(frozen=True)
class ClientSecrets:
    """How this installation presents itself at the login."""

    client_id: str
    client_secret: str = field(repr=False)
    auth_uri: str
    token_uri: str


def read_client_secrets(path: Path) -> ClientSecrets:
    """The app in this file; anything else is refused with the file's name and the field."""
    content = _parse(path)
    if "installed" not in content:
        raise BadInput(str(path), _not_a_desktop_app(content))
    app = content["installed"]
    if not isinstance(app, dict):
        raise BadInput(str(path), "field `installed` is not an object; download the file again")
    return ClientSecrets(
        client_id=_text(path, app, "client_id"),
        client_secret=_text(path, app, "client_secret"),
        auth_uri=_address(path, app, "auth_uri"),
        token_uri=_address(path, app, "token_uri"),
    )


def _parse(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _LARGEST:
            raise BadInput(str(path), f"is too large to be a client-secrets file; {_HOW_TO_GET_ONE}")
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise BadInput(str(path), f"cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise BadInput(str(path), f"is not JSON; {_HOW_TO_GET_ONE}") from None
    if not isinstance(content, dict):
        raise BadInput(str(path), f"is JSON but no client-secrets file; {_HOW_TO_GET_ONE}")
    return content


def _not_a_desktop_app(content: dict[str, Any]) -> str:
    if "web" in content:
        return f"field `web`: this is a client of type Web application, which cannot log in here; {_HOW_TO_GET_ONE}"
    if content.get("type") == "service_account":
        return f"field `type`: this is a service account's key, which has no mailbox of its own; {_HOW_TO_GET_ONE}"
    if "refresh_token" in content:
        return f"field `refresh_token`: these are somebody's tokens, not an app's client secrets; {_HOW_TO_GET_ONE}"
    return f"field `installed` is missing; {_HOW_TO_GET_ONE}"


def _text(path: Path, app: dict[str, Any], name: str) -> str:
    value = app.get(name)
    if not isinstance(value, str) or not value.strip():
        raise BadInput(str(path), f"field `installed.{name}` is missing or empty; download the file again")
    return value.strip()


def _address(path: Path, app: dict[str, Any], name: str) -> str:
    try:
        return require_safe_url(_text(path, app, name), name)
    except BadInput as error:
        if error.field != name:
            raise
        raise BadInput(str(path), f"field `installed.{name}`: {error.problem}") from None
