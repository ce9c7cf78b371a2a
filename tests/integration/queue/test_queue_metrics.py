"""The queue's metrics: the names and attributes of the contract, and nothing that could name a person or a message."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from postroom.db import Database
from postroom.domain.clock import SystemClock
from postroom.domain.jobs import CATALOGUE
from postroom.domain.terms import Tier
from postroom.queue import JobContext, NewJob, QueueName
from postroom.queue.inspection import depth
from postroom.queue.queue_metrics import record_depth
from postroom.queue.worker import Worker
from postroom.settings import QueueSettings
from postroom.telemetry import endpoint, metrics
from tests.support.queues import WORKER_SETTINGS, make_queue

PREFIX = "butlers_switchboard_queue_"
ALLOWED: dict[str, set[str]] = {
    "policy_tier": set(Tier),
    "queue_name": set(QueueName),
    "starvation_override": {"true", "false"},
    "job_type": {"noop", *(job_type.name for job_type in CATALOGUE)},
    "outcome": {"completed", "failed", "retried", "put_back", "refused", "canceled"},
}


def samples() -> Iterator[tuple[str, dict[str, str], float]]:
    for family in text_string_to_metric_families(metrics.exposition().decode()):
        for sample in family.samples:
            if sample.name.startswith(PREFIX):
                labels = {key: value for key, value in sample.labels.items() if not key.startswith("otel_scope")}
                yield sample.name.removeprefix(PREFIX), labels, sample.value


def dequeued() -> dict[tuple[str, str, str], float]:
    return {
        (labels["queue_name"], labels["policy_tier"], labels["starvation_override"]): value
        for name, labels, value in samples()
        if name == "dequeue_by_tier_total"
    }


async def serve(database: Database, tiers: list[Tier]) -> None:
    async def handle(context: JobContext) -> None:
        """Nothing to do."""

    queue = make_queue(database, SystemClock())
    await queue.enqueue(
        *(
            NewJob("noop", {"sender": "doctor@example.org"}, QueueName.LIVE, tier, key=f"gmail:me:{n}")
            for n, tier in enumerate(tiers)
        )
    )
    guard = QueueSettings(max_consecutive_same_tier=2)
    await Worker(queue, {"noop": handle}, WORKER_SETTINGS, guard, until_idle=True).run()


@pytest.mark.req("PQ-10")
async def test_each_dequeue_is_counted_by_tier_queue_and_override(database: Database) -> None:
    metrics.configure()
    before = dequeued()
    await serve(database, [Tier.HIGH_PRIORITY] * 3 + [Tier.DEFAULT])
    change = {key: value - before.get(key, 0) for key, value in dequeued().items() if value != before.get(key, 0)}
    assert change == {
        ("live", "high_priority", "false"): 3,
        ("live", "default", "true"): 1,
    }


@pytest.mark.req("PQ-10")
async def test_waiting_time_and_depth_are_told_by_tier_and_queue(database: Database) -> None:
    metrics.configure()
    await serve(database, [Tier.INTERACTIVE])
    await make_queue(database, SystemClock()).enqueue(NewJob("noop", queue=QueueName.LIVE, tier=Tier.INTERACTIVE))
    record_depth(await database.read(depth))
    names = {name for name, labels, _ in samples() if labels.get("policy_tier") and labels.get("queue_name")}
    assert {"wait_seconds_bucket", "wait_seconds_sum", "wait_seconds_count", "depth"} <= names
    depths = {
        (labels["queue_name"], labels["policy_tier"]): value for name, labels, value in samples() if "depth" in name
    }
    assert depths["live", "interactive"] == 1
    assert len(depths) == len(QueueName) * len(Tier)


@pytest.mark.req("PQ-10", "PL-6")
async def test_no_attribute_of_any_metric_can_name_a_message_a_sender_or_a_text(database: Database) -> None:
    metrics.configure()
    await serve(database, list(Tier) * 3)
    seen = list(samples())
    assert seen
    for _, labels, _ in seen:
        for key, value in labels.items():
            assert key == "le" or value in ALLOWED[key]


@pytest.mark.req("PL-7")
@pytest.mark.parametrize(
    ("header", "path", "status"),
    [
        (None, "/metrics", 401),
        ("Bearer wrong", "/metrics", 401),
        ("Basic c2VjcmV0", "/metrics", 401),
        ("Bearer 0123456789abcdef", "/other", 404),
        ("Bearer 0123456789abcdef", "/metrics", 200),
    ],
)
def test_metrics_are_served_on_loopback_to_whoever_has_the_token(header: str | None, path: str, status: int) -> None:
    with endpoint.serve(0, "0123456789abcdef") as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", path, headers={} if header is None else {"Authorization": header})
        response = connection.getresponse()
        body = response.read()
        connection.close()
        assert server_of(port) == {"127.0.0.1"}
    assert response.status == status
    assert (b"python_info" in body) == (status == 200)


def server_of(port: int) -> set[str]:
    """The addresses that a port listens on, as the kernel knows them (hexadecimal, in network order by words)."""
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        address, state = line.split()[1], line.split()[3]
        host, number = address.split(":")
        if int(number, 16) == port and state == "0A":
            found.add(".".join(str(byte) for byte in reversed(bytes.fromhex(host))))
    return found
