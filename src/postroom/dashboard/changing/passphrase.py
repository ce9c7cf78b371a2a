"""Proving that one knows the passphrase, at the login and before it is changed; every wrong guess counts."""

from __future__ import annotations

from postroom.dashboard.security import browser_secrets, cookies, passphrase, throttle
from postroom.dashboard.security.throttle import Guesser
from postroom.dashboard.visit import Visit
from postroom.db import Tx
from postroom.domain.errors import BadInput


async def prove_passphrase(here: Visit, offered: str, field: str = "passphrase") -> str:
    """The hash that it was held against."""
    stored = await here.read(passphrase.stored_hash)
    guesser = guesser_of(here, stored)
    try:
        attempt = await here.write(lambda tx: throttle.admit(tx, guesser, here.now))
        await here.desk.slowing.hold(attempt)
    except throttle.TooManyAttempts:
        await here.desk.failures.note(guesser.address, is_refused=True)
        raise
    if stored is None or len(offered) > passphrase.LONGEST or not await here.desk.hashing.matches(offered, stored):
        await here.desk.failures.note(guesser.address)
        raise BadInput(field, "is not right")
    await here.write(lambda tx: throttle.lift(tx, guesser))
    return stored


def guesser_of(here: Visit, stored: str | None) -> Guesser:
    offered = cookies.read_device(here.request, here.desk.hosts)
    device = browser_secrets.device_of(offered, stored) if offered and stored else None
    return Guesser(address_of(here), device)


async def change_passphrase(here: Visit, current: str, chosen: str, repeated: str) -> int:
    """All other logins end with the old one; how many there were."""
    passphrase.check(chosen, repeated)
    proven = await prove_passphrase(here, current, "current")
    made = await here.desk.hashing.make(chosen)
    own = here.visitor.session

    def change(tx: Tx) -> int:
        passphrase.require_unchanged(tx, proven, "current")
        return passphrase.set_hash(tx, made, here.actor, here.now, but=own.id if own else None)

    return await here.write(change)


def address_of(here: Visit) -> str:
    return here.request.client.host if here.request.client else "?"
