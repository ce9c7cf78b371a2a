"""All that a method of the API works on, built once for a server."""

from __future__ import annotations

from dataclasses import dataclass, field

from postroom.domain.clock import Clock
from postroom.gmail.sim.drafts import Drafts
from postroom.gmail.sim.model import MailSource
from postroom.gmail.sim.opaque import Sealer
from postroom.gmail.sim.render import Renderer
from postroom.gmail.sim.store import Store


@dataclass
class Watch:
    topic: str
    label_ids: list[str]
    expires_ms: int


@dataclass
class MailboxState:
    source: MailSource
    clock: Clock
    store: Store = field(init=False)
    drafts: Drafts = field(init=False)
    sealer: Sealer = field(init=False)
    renderer: Renderer = field(init=False)
    watch: Watch | None = None

    def __post_init__(self) -> None:
        self.store = Store(self.source, self.clock)
        self.drafts = Drafts(self.store)
        self.sealer = Sealer(self.source.email)
        self.renderer = Renderer(self.store, self.sealer)
