"""The process that reads foreign bytes: requests in on standard input, answers out on standard output.

A request names a task, `module:function` of ours; the function takes a header and a body and gives both back. Headers
are JSON and bodies are bytes, so an answer can carry no code. A task's module may have a function `warm_up`: it is
called once before the process is confined, to load what the libraries load late.
"""

from __future__ import annotations

import codecs
import encodings
import faulthandler
import importlib
import json
import logging
import os
import pkgutil
import resource
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO

from postroom.reading import confinement

SIZES = struct.Struct(">IQ")
"""Before every message, either way: the bytes of its header and of its body."""

Task = Callable[[dict[str, Any], bytes], tuple[dict[str, Any], bytes]]
_OUT_OF_MEMORY = b'{"failed":"memory","reason":"it needs more memory than one reading may use"}'


def main(modules: list[str], memory_bytes: int) -> None:
    """Reads until standard input ends. A request may use `memory_bytes` beyond what the process uses at its start."""
    prepare(modules)
    own_size = _address_space()
    report = confinement.confine()
    if own_size is not None:
        confinement.limit_memory(own_size + memory_bytes)
    incoming, outgoing = sys.stdin.buffer, sys.stdout.buffer
    _send(outgoing, json.dumps({"confinement": report, "modules": modules}).encode())
    while (header := _receive_header(incoming)) is not None:
        if not _answer(header, own_size, incoming, outgoing):
            return


def _answer(header: dict[str, Any], own_size: int | None, incoming: BinaryIO, outgoing: BinaryIO) -> bool:
    """Answer one request; returns whether this process can be trusted with another."""
    confinement.limit_request(header["cpu_seconds"], None if own_size is None else own_size + header["memory_bytes"])
    try:
        answer, data = _task(header["task"])(header["header"], incoming.read(header["body_bytes"]))
        encoded = json.dumps({"header": answer}).encode()
    except MemoryError:
        _send(outgoing, _OUT_OF_MEMORY)
        return False
    except RecursionError:
        encoded, data = _failure("it is nested too deeply"), b""
    except Exception as error:
        encoded, data = _failure(_where(error)), b""
    _send(outgoing, encoded, data)
    confinement.rest()
    return True


def nothing(header: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
    """A task that shows that the process works."""
    return {}, b""


def prepare(modules: list[str]) -> None:
    """Load everything that a task may need while files can still be opened."""
    faulthandler.enable()
    logging.disable(logging.CRITICAL)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")  # when memory runs out, this process goes before any other
    for codec in pkgutil.iter_modules(encodings.__path__):
        with suppress(LookupError):
            codecs.lookup(codec.name)
    for name in modules:
        module = importlib.import_module(name)
        if (warm_up := getattr(module, "warm_up", None)) is not None:
            warm_up()


def _task(name: str) -> Task:
    module, _, function = name.partition(":")
    task: Task = getattr(importlib.import_module(module), function)
    return task


def _failure(reason: str) -> bytes:
    return json.dumps({"failed": "error", "reason": reason}).encode()


def _where(error: Exception) -> str:
    """The kind of an error and the line it comes from; its text may quote what was read."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    place = "" if last is None else f" in {os.path.basename(last.tb_frame.f_code.co_filename)}:{last.tb_lineno}"
    return f"{type(error).__name__}{place}"


def _address_space() -> int | None:
    """How much this process has now; None where the system does not say."""
    try:
        with open("/proc/self/statm") as facts:
            return int(facts.read().split()[0]) * resource.getpagesize()
    except (OSError, ValueError):
        return None


def _receive_header(incoming: BinaryIO) -> dict[str, Any] | None:
    sizes = incoming.read(SIZES.size)
    if len(sizes) < SIZES.size:
        return None
    header, body = SIZES.unpack(sizes)
    return {**json.loads(incoming.read(header)), "body_bytes": body}


def _send(outgoing: BinaryIO, header: bytes, body: bytes = b"") -> None:
    outgoing.write(SIZES.pack(len(header), len(body)) + header)
    outgoing.write(body)
    outgoing.flush()


if __name__ == "__main__":
    main(sys.argv[2:], int(sys.argv[1]))
