"""Google's public keys, fetched when needed and kept as long as Google says. Strangers cannot make us fetch often."""

from __future__ import annotations

import asyncio
import binascii
import re
from base64 import urlsafe_b64decode
from collections.abc import Mapping

import httpx2
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey, RSAPublicNumbers

from postroom.domain.clock import Clock
from postroom.domain.errors import Retryable
from postroom.gmail.reach import http_client, unreachable

GOOGLE_CERTS = "https://www.googleapis.com/oauth2/v3/certs"

_LEAST_BITS = 2_048
_BETWEEN_FETCHES_S = 60.0
_KEPT_S = 3_600.0
_LONGEST_KEPT_S = 86_400.0


class GoogleKeys:
    """A KeySource over the JSON web keys at an address."""

    def __init__(self, clock: Clock, url: str = GOOGLE_CERTS) -> None:
        self._clock = clock
        self._url = url
        self._keys: Mapping[str, RSAPublicKey] = {}
        self._stale_at = float("-inf")
        self._next_fetch_at = float("-inf")
        self._one_at_a_time = asyncio.Lock()

    async def key(self, key_id: str) -> RSAPublicKey | None:
        async with self._one_at_a_time:
            now = self._clock.monotonic()
            unknown = key_id not in self._keys or now >= self._stale_at
            if unknown and now >= self._next_fetch_at:
                self._next_fetch_at = now + _BETWEEN_FETCHES_S
                await self._fetch()
            return self._keys.get(key_id)

    async def _fetch(self) -> None:
        try:
            async with http_client() as http:
                response = await http.get(self._url)
        except httpx2.TransportError as error:
            raise unreachable(error, self._url) from error
        keys = _parse(response) if response.status_code == 200 else {}
        if not keys:
            raise Retryable(f"{self._url} gave no keys to verify pushes with ({response.status_code}).")
        self._keys = keys
        self._stale_at = self._clock.monotonic() + _max_age(response.headers.get("cache-control", ""))


def _parse(response: httpx2.Response) -> dict[str, RSAPublicKey]:
    try:
        entries = response.json()["keys"]
        return {entry["kid"]: _rsa(entry["n"], entry["e"]) for entry in entries if entry.get("kty") == "RSA"}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error):
        return {}


def _rsa(modulus: str, exponent: str) -> RSAPublicKey:
    key = RSAPublicNumbers(_integer(exponent), _integer(modulus)).public_key()
    if key.key_size < _LEAST_BITS:
        raise ValueError("a key this short proves nothing")
    return key


def _integer(text: str) -> int:
    return int.from_bytes(urlsafe_b64decode(text + "=" * (-len(text) % 4)), "big")


def _max_age(cache_control: str) -> float:
    found = re.search(r"max-age=([0-9]{1,9})", cache_control)
    return min(float(found[1]), _LONGEST_KEPT_S) if found else _KEPT_S
