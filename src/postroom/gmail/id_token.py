"""Verifies the signed identity that Google attaches to a push (OIDC, a JSON web token): RS256 and nothing else."""

from __future__ import annotations

import binascii
import json
import re
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256

from postroom.domain.clock import Clock

ISSUERS = frozenset({"https://accounts.google.com", "accounts.google.com"})

_LONGEST = 8 * 1024
_LEEWAY = timedelta(seconds=30)
_WELL_FORMED = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")


class KeySource(Protocol):
    async def key(self, key_id: str) -> RSAPublicKey | None:
        """The issuer's public key of this name, or None if it has no such key. Names come from strangers."""


class Forged(Exception):
    """The token does not prove what it should. The text says why, and repeats nothing of the token."""


@dataclass(frozen=True)
class IdTokenVerifier:
    """Accepts tokens made by Google, for us (`audience`), by the service account that our subscription names."""

    audience: str
    service_account: str
    keys: KeySource
    clock: Clock

    async def verify(self, token: str) -> None:
        """Raise Forged unless the token is what it should be."""
        if len(token) > _LONGEST or not _WELL_FORMED.fullmatch(token):
            raise Forged("the token is not a signed JSON web token")
        signed, _, signature = token.rpartition(".")
        head, _, claims = signed.partition(".")
        key = await self._key(_decoded(head))
        try:
            key.verify(_bytes(signature), signed.encode("ascii"), PKCS1v15(), SHA256())
        except InvalidSignature:
            raise Forged("the signature is not Google's") from None
        self._check(_decoded(claims))

    async def _key(self, head: Mapping[str, object]) -> RSAPublicKey:
        # The algorithm is fixed here: a token must not choose how it is verified.
        if head.get("alg") != "RS256" or "crit" in head:
            raise Forged("the token is not signed with RS256")
        key_id = head.get("kid")
        key = await self.keys.key(key_id) if isinstance(key_id, str) else None
        if key is None:
            raise Forged("the token names no key of Google's")
        return key

    def _check(self, claims: Mapping[str, object]) -> None:
        issuer = claims.get("iss")
        if not isinstance(issuer, str) or issuer not in ISSUERS:
            raise Forged("the issuer is not Google")
        if claims.get("aud") != self.audience:
            raise Forged("the token is for another audience")
        if claims.get("email") != self.service_account or claims.get("email_verified") is not True:
            raise Forged("the token is of another service account")
        now = self.clock.now().timestamp()
        if _number(claims, "exp") <= now - _LEEWAY.total_seconds():
            raise Forged("the token has expired (or this machine's clock is ahead)")
        if _number(claims, "iat") > now + _LEEWAY.total_seconds():
            raise Forged("the token is from the future (or this machine's clock is behind)")


def _number(claims: Mapping[str, object], name: str) -> float:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Forged(f"the token does not say its {name}")
    return float(value) if abs(value) < 1e15 else float("-inf")


def _bytes(text: str) -> bytes:
    try:
        return urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        raise Forged("the token is not in base64") from None


def _decoded(text: str) -> Mapping[str, object]:
    try:
        value = json.loads(_bytes(text))
    except (ValueError, RecursionError):
        raise Forged("the token does not hold JSON") from None
    if not isinstance(value, dict):
        raise Forged("the token does not hold a JSON object")
    return value
