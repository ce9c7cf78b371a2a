"""A plain HTTP client for the stand-in."""

from __future__ import annotations

import ssl

import httpx2

_NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Loading the real ones takes longer than most tests, and the stand-in speaks plain HTTP."""


def plain_client(url: str, **headers: str) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=url, headers=headers, timeout=20, verify=_NO_CERTIFICATES)


def api_client(url: str, token: str) -> httpx2.AsyncClient:
    return plain_client(f"{url}/gmail/v1/users/me/", Authorization=f"Bearer {token}")


def reason(response: httpx2.Response) -> tuple[int, str]:
    """Status and reason of a refusal, as Google's error bodies give them."""
    error = response.json()["error"]
    assert error["code"] == response.status_code
    assert error["status"]
    assert error["errors"][0]["message"] == error["message"]
    return error["code"], error["errors"][0]["reason"]
