"""How a person gets in for the first time, or again after forgetting: a one-time link, shown where only they look."""

from __future__ import annotations

from postroom.app.installation import App
from postroom.audit import Actor
from postroom.dashboard.security import links, passphrase


async def fresh_link(app: App, served_at: str, who: Actor) -> str:
    """A link that sets the passphrase, by the address that people use."""
    secret = await app.database.write(lambda tx: links.make_link(tx, who, app.clock.now()))
    return links.url_of(app.settings.dashboard.url or served_at, secret)


async def first_link(app: App, served_at: str, who: Actor) -> str | None:
    """The same while nobody has set a passphrase; afterwards none."""
    if await app.database.read(passphrase.stored_hash) is not None:
        return None
    return await fresh_link(app, served_at, who)
