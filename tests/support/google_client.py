"""Google's own Python client, pointed at the stand-in, with every answer held against the discovery document."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import google_auth_httplib2  # type: ignore[import-untyped]
import httplib2  # type: ignore[import-untyped]
from google.oauth2.credentials import Credentials
from googleapiclient.discovery import build_from_document  # type: ignore[import-untyped]
from googleapiclient.errors import HttpError  # type: ignore[import-untyped]

from tests.support import discovery

__all__ = ["HttpError", "google_service", "plain_google_service"]


class _CheckingHttp(httplib2.Http):  # type: ignore[misc]
    def request(self, uri: str, method: str = "GET", *args: Any, **kwargs: Any) -> tuple[Any, bytes]:
        response, content = super().request(uri, method, *args, **kwargs)
        path = urlsplit(uri).path
        if not path.startswith("/batch"):
            discovery.check_response(method, path, response.status, content)
        return response, content


def google_service(url: str, token: str) -> Any:
    """`service.users()` as in Google's examples. It has no types, so neither has this."""
    return _service(url, token, _CheckingHttp(timeout=20))


def plain_google_service(url: str, token: str) -> Any:
    """The same without our checks, as anyone would use it: for measuring."""
    return _service(url, token, httplib2.Http(timeout=60))


def _service(url: str, token: str, http: Any) -> Any:
    credentials = Credentials(token=token)  # type: ignore[no-untyped-call]
    authorized = google_auth_httplib2.AuthorizedHttp(credentials, http=http)
    return build_from_document(discovery.document(url), http=authorized)
