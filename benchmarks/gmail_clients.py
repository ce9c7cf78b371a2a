"""The two ways to fetch that are compared; each runs in a process of its own and prints one line of JSON.

`google` is google-api-python-client in batches of 50, as lieer and GYB fetch; `postroom` is our client.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from base64 import urlsafe_b64decode
from dataclasses import asdict, dataclass
from typing import Any

from postroom.domain.clock import SystemClock
from postroom.mailboxes.gmail.client import connected
from postroom.mailboxes.gmail.transport import TransportConfig
from postroom.mailboxes.limiter import limiter_for
from postroom.mailboxes.pace import TunerLimits
from postroom.mailboxes.protocol import Got

_PEER_BATCH = 50
_JOB = 300
_WORKERS = 4
_NO_LIMIT = TunerLimits(start_workers=32, start_rps=1e6, max_rps=1e6, p95_limit_s=3_600)


@dataclass(frozen=True, slots=True)
class Fetch:
    """What one run fetched, and what it took."""

    messages: int
    bytes: int
    seconds: float
    cpu_seconds: float


class FixedToken:
    def __init__(self, token: str) -> None:
        self._token = token

    async def access_token(self, *, rejected: str | None = None) -> str:
        if rejected is not None:
            raise RuntimeError("the stand-in refused its own token")
        return self._token


def _measured(messages: int, size: int, started: float, cpu_before: float) -> Fetch:
    return Fetch(messages, size, time.perf_counter() - started, _cpu() - cpu_before)


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def fetch_with_postroom(url: str, token: str, ids: list[str], batch_size: int) -> Fetch:
    clock = SystemClock()
    limiter = limiter_for(None, clock, tuning=_NO_LIMIT)
    config = TransportConfig(api_base=url)
    async with connected(FixedToken(token), limiter, clock, config=config, batch_size=batch_size) as client:
        await client.get_profile()
        started, cpu_before = time.perf_counter(), _cpu()
        jobs = iter([ids[start : start + _JOB] for start in range(0, len(ids), _JOB)])
        sizes: list[int] = []

        async def work() -> None:
            for job in jobs:
                for each in await client.get_messages(job):
                    assert isinstance(each, Got), each
                    sizes.append(len(each.message.raw or b""))

        await asyncio.gather(*(work() for _ in range(_WORKERS)))
        return _measured(len(sizes), sum(sizes), started, cpu_before)


def fetch_with_google(url: str, token: str, ids: list[str]) -> Fetch:
    from tests.support.google_client import plain_google_service

    service = plain_google_service(url, token)
    messages = service.users().messages()
    sizes: list[int] = []

    def keep(request_id: str, answer: Any, error: Any) -> None:
        assert error is None, error
        sizes.append(len(urlsafe_b64decode(answer["raw"])))

    service.users().getProfile(userId="me").execute()
    started, cpu_before = time.perf_counter(), _cpu()
    for start in range(0, len(ids), _PEER_BATCH):
        batch = service.new_batch_http_request(callback=keep)
        for message_id in ids[start : start + _PEER_BATCH]:
            batch.add(messages.get(userId="me", id=message_id, format="raw"))
        batch.execute()
    return _measured(len(sizes), sum(sizes), started, cpu_before)


def main(task_json: str) -> None:
    task = json.loads(task_json)
    url, token, ids = task["url"], task["token"], task["ids"]
    if task["client"] == "google":
        fetch = fetch_with_google(url, token, ids)
    else:
        fetch = asyncio.run(fetch_with_postroom(url, token, ids, task["batch_size"]))
    print(json.dumps(asdict(fetch)))


if __name__ == "__main__":
    main(sys.argv[1])
