"""Somebody who brings mail to a running Switchboard without a pause, so that others can look at it while it works."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from postroom.archive.model import IncomingMail
from postroom.domain.roles import Role
from tests.support.archives import ME
from tests.support.envelopes import envelope, inline
from tests.support.switchboards import Calls, SwitchboardProcess, stranger

_BATCH = 5


class Courier:
    """Stores and ingests batch after batch; another thread can wait for the next one."""

    def __init__(self, mails: Sequence[IncomingMail]) -> None:
        self.mails = mails
        self.delivered: list[str] = []
        self.is_over = False
        self._more = threading.Condition()

    async def deliver(self, running: SwitchboardProcess) -> None:
        try:
            async with stranger(running.url, await running.token(Role.CONNECTOR)) as call:
                for start in range(0, len(self.mails), _BATCH):
                    keys = await _bring(call, self.mails[start : start + _BATCH])
                    self._tell(keys)
        finally:
            self.is_over = True
            self._tell([])

    def wait_for_more(self) -> None:
        """Called in another thread: returns when something was delivered after the call, or nothing will be."""
        before = len(self.delivered)
        with self._more:
            self._more.wait_for(lambda: len(self.delivered) > before or self.is_over)

    def _tell(self, keys: list[str]) -> None:
        with self._more:
            self.delivered += keys
            self._more.notify_all()


async def _bring(call: Calls, mails: Sequence[IncomingMail]) -> list[str]:
    raws = [
        {
            "gmail_id": mail.gmail_id,
            "internal_date": int(mail.received.timestamp() * 1_000) if mail.received else 0,
            "raw": inline(mail.raw)["base64"],
        }
        for mail in mails
    ]
    proofs = (await call("archive.store", endpoint_identity=ME, messages=raws))["stored"]
    sent = [envelope(p["key"], raw={"archive_key": p["key"], "sha256": p["sha256"]}, text="body") for p in proofs]
    results = (await call("ingest", {"envelopes": sent}))["results"]
    assert {result["status"] for result in results} == {"accepted"}
    return [str(proof["key"]) for proof in proofs]
