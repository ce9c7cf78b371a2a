"""`postroom switchboard` attacked by peers without a token and by one with a stolen one: it stays small and answers."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from postroom.domain.roles import Role
from tests.support.switchboards import SwitchboardProcess, stranger

pytestmark = pytest.mark.req("HW-3")

MB = 1_000_000
GROWTH_MB = 60


@asynccontextmanager
async def attacked(home: Path) -> AsyncIterator[SwitchboardProcess]:
    running = SwitchboardProcess(home)
    await running.start()
    try:
        yield running
    finally:
        await running.kill()


def peak_mb(running: SwitchboardProcess) -> float:
    assert running.process is not None
    lines = Path(f"/proc/{running.process.pid}/status").read_text().splitlines()
    [peak] = [line.split()[1] for line in lines if line.startswith("VmHWM")]
    return int(peak) / 1_024


def cpu_s(running: SwitchboardProcess) -> float:
    assert running.process is not None
    fields = Path(f"/proc/{running.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def pour(port: int, begin: bytes, piece: bytes, most: int) -> int:
    """Send until the server closes; how much it took."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sent = 0
    try:
        writer.write(begin)
        while sent < most and not reader.at_eof():
            writer.write(piece)
            await writer.drain()
            sent += len(piece)
    except ConnectionError:
        pass
    finally:
        writer.close()
    return sent


async def healthy(url: str) -> bool:
    async with httpx2.AsyncClient() as http:
        return (await http.get(f"{url.removesuffix('/mcp')}/health")).status_code == 200


async def test_heads_without_end_cost_neither_memory_nor_time(home: Path) -> None:
    many = b"".join(b"header-%05d: value\r\n" % n for n in range(3_000))
    async with attacked(home) as running:
        port = urlsplit(running.url).port or 0
        assert await healthy(running.url)
        before, spent = peak_mb(running), cpu_s(running)
        for piece in (many, b"a" * 65_536):
            for _ in range(5):
                assert await pour(port, b"GET / HTTP/1.1\r\n", piece, 120 * MB) < 20 * MB
        assert peak_mb(running) - before < GROWTH_MB
        assert cpu_s(running) - spent < 1.0
        assert await healthy(running.url)


async def test_bodies_of_a_stolen_agent_token_are_refused_before_they_cost_anything(home: Path) -> None:
    bomb = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"archive_search","arguments":{"a":['
    async with attacked(home) as running:
        token = await running.token(Role.AGENT)
        headers = {"authorization": f"Bearer {token}", "accept": "application/json", "content-type": "application/json"}
        async with stranger(running.url, token) as call:
            await call.client.list_tools()
        before, spent = peak_mb(running), cpu_s(running)

        async def pieces() -> AsyncIterator[bytes]:
            yield bomb
            for _ in range(72 * MB // 60_000):
                yield b"{}," * 20_000

        async with httpx2.AsyncClient(headers=headers) as http:
            for _ in range(3):
                try:
                    assert (await http.post(running.url, content=pieces())).status_code == 413
                except httpx2.TransportError:
                    continue  # it stopped listening while the body was still being sent
            small = bomb + b"{}," * 60_000
            answers = await asyncio.gather(*(http.post(running.url, content=small) for _ in range(12)))
            assert {answer.status_code for answer in answers} == {413}
            assert "values" in answers[0].json()["error"]
        assert peak_mb(running) - before < GROWTH_MB
        assert cpu_s(running) - spent < 2.0
        async with stranger(running.url, token) as call:
            await call.client.list_tools()


async def test_three_hundred_silent_connections_shut_nobody_out_and_do_not_hold_up_the_end(home: Path) -> None:
    """The bounds of time are far below those at which the server would close such connections by itself."""
    async with attacked(home) as running, AsyncExitStack() as stack:
        port = urlsplit(running.url).port or 0
        token = await running.token(Role.AGENT)
        async with stranger(running.url, token) as known:
            await known.client.list_tools()
            for n in range(300):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                stack.callback(writer.close)
                writer.write((b"", b"GET / HT", b"POST /login HTTP/1.1\r\ncontent-length: 9\r\n\r\nabc")[n % 3])
            assert await healthy(running.url)
            await known.client.list_tools()
            async with stranger(running.url, token) as call:
                await call.client.list_tools()
            slow = {"authorization": f"Bearer {token}", "content-length": "99"}
            head = "".join(f"{name}: {value}\r\n" for name, value in slow.items())
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.close)
            writer.write(f"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n{head}\r\nabc".encode())
            await writer.drain()
        async with asyncio.timeout(10):
            code, logged = await running.end()
    assert code == 0
    closed = [json.loads(line) for line in logged.splitlines() if "connections_closed" in line]
    assert sum(each.get("crowded", 0) for each in closed) >= 150
