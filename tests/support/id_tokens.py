"""Signs identity tokens as Google would, and as somebody who would like to be Google."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256

AUDIENCE = "https://mail.example.com/push"
SERVICE_ACCOUNT = "push@project.iam.gserviceaccount.com"
KEY_ID = "key-1"


@cache
def private_key(name: str = "google") -> RSAPrivateKey:
    return generate_private_key(65_537, 2_048)


def b64(value: Any) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def claims(now: float, **changes: Any) -> dict[str, Any]:
    standard = {
        "iss": "https://accounts.google.com",
        "aud": AUDIENCE,
        "email": SERVICE_ACCOUNT,
        "email_verified": True,
        "iat": int(now),
        "exp": int(now) + 3_600,
    }
    return standard | changes


def signed(payload: Any, head: dict[str, Any] | None = None, key: RSAPrivateKey | None = None) -> str:
    head = {"alg": "RS256", "typ": "JWT", "kid": KEY_ID} if head is None else head
    text = f"{b64(head)}.{b64(payload)}"
    signature = (key or private_key()).sign(text.encode(), PKCS1v15(), SHA256())
    return f"{text}.{b64(signature)}"


def jwk(key: RSAPublicKey, key_id: str = KEY_ID) -> dict[str, str]:
    numbers = key.public_numbers()
    modulus = numbers.n.to_bytes(key.key_size // 8, "big")
    return {"kty": "RSA", "alg": "RS256", "use": "sig", "kid": key_id, "n": b64(modulus), "e": b64(b"\x01\x00\x01")}


@dataclass
class KnownKeys:
    """A KeySource that keeps what it was asked for."""

    keys: dict[str, RSAPublicKey] = field(default_factory=lambda: {KEY_ID: private_key().public_key()})
    asked: list[str] = field(default_factory=list)

    async def key(self, key_id: str) -> RSAPublicKey | None:
        self.asked.append(key_id)
        return self.keys.get(key_id)
