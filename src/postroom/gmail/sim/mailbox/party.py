"""Who a message is from or for."""

from __future__ import annotations

from dataclasses import dataclass

from postroom.gmail.sim.mailbox.languages import ENGLISH, Language


@dataclass(frozen=True, slots=True)
class Party:
    """A sender or recipient."""

    name: str
    address: str
    language: Language = ENGLISH

    @property
    def header(self) -> str:
        return f"{self.name} <{self.address}>" if self.name else self.address

    @property
    def domain(self) -> str:
        return self.address.rpartition("@")[2]
