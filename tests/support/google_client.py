"""Google's own Python client pointed at the stand-in, and Google's description of the Gmail API. Every answer is
checked against the discovery document.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

import google_auth_httplib2  # type: ignore[import-untyped]
import httplib2  # type: ignore[import-untyped]
from google.oauth2.credentials import Credentials
from googleapiclient.discovery import build_from_document  # type: ignore[import-untyped]
from googleapiclient.errors import HttpError  # type: ignore[import-untyped]
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

Json = dict[str, Any]


@dataclass(frozen=True)
class ApiMethod:
    name: str
    verb: str
    path: re.Pattern[str]
    response: str | None
    scopes: frozenset[str]


@cache
def _text() -> str:
    place = files("googleapiclient") / "discovery_cache" / "documents" / "gmail.v1.json"
    return place.read_text(encoding="utf-8")


def document(root_url: str) -> Json:
    """The document with the service at another address; the client's batches follow it only so."""
    described: Json = json.loads(_text())
    return described | {"rootUrl": f"{root_url}/", "baseUrl": f"{root_url}/", "batchPath": "batch/gmail/v1"}


@cache
def methods() -> tuple[ApiMethod, ...]:
    return tuple(_methods(json.loads(_text())["resources"]["users"], ""))


def _methods(resource: Json, prefix: str) -> Iterator[ApiMethod]:
    for name, method in resource.get("methods", {}).items():
        path = re.compile("(?:/upload)?/" + re.sub(r"\\{[^}]+\\}", "[^/]+", re.escape(method["path"])))
        response = method.get("response", {}).get("$ref")
        yield ApiMethod(prefix + name, method["httpMethod"], path, response, frozenset(method["scopes"]))
    for name, child in resource.get("resources", {}).items():
        yield from _methods(child, f"{prefix}{name}.")


def method_of(verb: str, path: str) -> ApiMethod:
    found = [method for method in methods() if method.verb == verb and method.path.fullmatch(path)]
    return min(found, key=lambda method: method.path.pattern.count("[^/]+"))


def check(schema: str, value: object) -> None:
    """Fails unless a value is exactly what the document says: right types, and nothing that it does not name."""
    _validator(schema).validate(value)


def check_response(verb: str, path: str, status: int, body: bytes) -> None:
    method = method_of(verb, path)
    if status == 204:
        assert not body, f"{method.name} answered 204 with a body"
        assert method.response is None
    elif status == 200:
        assert method.response is not None, f"{method.name} is to answer nothing"
        check(method.response, json.loads(body))


@cache
def _validator(schema: str) -> Draft202012Validator:
    definitions = {name: _converted(body) for name, body in json.loads(_text())["schemas"].items()}
    return Draft202012Validator({"$ref": f"#/$defs/{schema}", "$defs": definitions})


_FORMATS: dict[str, Json] = {
    "uint64": {"pattern": "^[0-9]{1,20}$"},
    "int64": {"pattern": "^-?[0-9]{1,19}$"},
    "byte": {"pattern": "^[A-Za-z0-9_-]*={0,2}$"},
    "int32": {"minimum": -(2**31), "maximum": 2**31 - 1},
    "uint32": {"minimum": 0, "maximum": 2**32 - 1},
}


def _converted(node: Json) -> Json:
    if "$ref" in node:
        return {"$ref": f"#/$defs/{node['$ref']}"}
    result: Json = {"type": node["type"]} | _FORMATS.get(node.get("format", ""), {})
    if "enum" in node:
        result["enum"] = node["enum"]
    if "items" in node:
        result["items"] = _converted(node["items"])
    if "properties" in node:
        result["properties"] = {name: _converted(child) for name, child in node["properties"].items()}
        result["additionalProperties"] = False
    return result


__all__ = ["HttpError", "google_service", "plain_google_service"]


class _CheckingHttp(httplib2.Http):  # type: ignore[misc]
    def request(self, uri: str, method: str = "GET", *args: Any, **kwargs: Any) -> tuple[Any, bytes]:
        response, content = super().request(uri, method, *args, **kwargs)
        path = urlsplit(uri).path
        if not path.startswith("/batch"):
            check_response(method, path, response.status, content)
        return response, content


def google_service(url: str, token: str) -> Any:
    """`service.users()` as in Google's examples. It has no types, so neither has this."""
    return _service(url, token, _CheckingHttp(timeout=60))


def plain_google_service(url: str, token: str) -> Any:
    """The same without our checks, as anyone would use it: for measuring."""
    return _service(url, token, httplib2.Http(timeout=60))


def _service(url: str, token: str, http: Any) -> Any:
    credentials = Credentials(token=token)  # type: ignore[no-untyped-call]
    authorized = google_auth_httplib2.AuthorizedHttp(credentials, http=http)
    return build_from_document(document(url), http=authorized)
