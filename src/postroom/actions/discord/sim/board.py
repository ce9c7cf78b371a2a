"""What the stand-in holds: messages, faults to come, and the key with which it signs what people press."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

import httpx2
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pydantic import BaseModel, ConfigDict, Field

from postroom.tls import trusted

Json = dict[str, Any]
_FIRST_ID = 1_300_000_000_000_000_000
_TIMEOUT_S = 10.0


class Fault(BaseModel):
    """What becomes of the next calls. With `after_effect`, the call is carried out and only its answer is lost."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    call: str = Field("*", pattern=r"^(create|edit|\*)$")
    status: int = Field(503, ge=400, le=599)
    code: int = 0
    retry_after: float | None = Field(None, ge=0)
    after_effect: bool = False
    times: int = Field(1, ge=1)


@dataclass
class Board:
    channel_id: str
    private_key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    interactions_url: str | None = None
    """Where presses go, as it is set in Discord's developer portal."""
    messages: dict[str, Json] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    _faults: list[tuple[Fault, list[int]]] = field(default_factory=list)

    @property
    def public_key(self) -> str:
        return self.private_key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()

    def add_fault(self, fault: Fault) -> None:
        self._faults.append((fault, [fault.times]))

    def clear_faults(self) -> None:
        self._faults.clear()

    def strike(self, call: str) -> Fault | None:
        for fault, left in self._faults:
            if left[0] and fault.call in ("*", call):
                left[0] -= 1
                return fault
        return None

    def create(self, body: Json) -> Json:
        """With `enforce_nonce`, a nonce that is known gives the message that bears it."""
        if body.get("enforce_nonce"):
            for known in self.messages.values():
                if known.get("nonce") == body.get("nonce"):
                    return known
        message = {"id": str(_FIRST_ID + len(self.calls)), "channel_id": self.channel_id, **body}
        self.messages[message["id"]] = message
        return message

    def edit(self, message_id: str, body: Json) -> Json | None:
        if message_id not in self.messages:
            return None
        self.messages[message_id] |= body
        return self.messages[message_id]

    def button(self, message_id: str, label: str) -> str:
        """The custom id of a button; KeyError where the message has none of that name."""
        for row in self.messages[message_id].get("components", []):
            for component in row["components"]:
                if component["label"] == label:
                    return str(component["custom_id"])
        raise KeyError(f"the message has no button {label}")

    def signed(self, interaction: Json, timestamp: int | None = None) -> tuple[bytes, dict[str, str]]:
        """An interaction as Discord would send it: body and headers."""
        body = json.dumps(interaction).encode()
        stamp = str(int(time.time()) if timestamp is None else timestamp)
        signature = self.private_key.sign(stamp.encode() + body).hex()
        headers = {
            "X-Signature-Ed25519": signature,
            "X-Signature-Timestamp": stamp,
            "Content-Type": "application/json",
        }
        return body, headers

    async def press(self, message_id: str, label: str, user_id: str, username: str = "ana") -> Json:
        """A person presses a button; the answer is carried out as Discord does, and returned."""
        user = {"id": user_id, "username": username}
        data = {"component_type": 2, "custom_id": self.button(message_id, label)}
        answer = await self.deliver({"type": 3, "data": data, "member": {"user": user}})
        if answer.get("type") == 7:
            self.edit(message_id, answer["data"])
        return answer

    async def ping(self) -> Json:
        return await self.deliver({"type": 1})

    async def deliver(self, interaction: Json, timestamp: int | None = None) -> Json:
        body, headers = self.signed(interaction, timestamp)
        if self.interactions_url is None:
            raise KeyError("no interactions URL is set")
        async with httpx2.AsyncClient(timeout=_TIMEOUT_S, trust_env=False, verify=trusted()) as http:
            response = await http.post(self.interactions_url, content=body, headers=headers)
        answer: Json = response.json()
        return {**answer, "status": response.status_code}
