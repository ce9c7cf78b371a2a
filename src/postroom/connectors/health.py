"""`/health` and `/metrics` of a connector, on loopback. Health is for anybody here, metrics need the token."""

from __future__ import annotations

import hmac
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from postroom.domain.errors import BadInput
from postroom.telemetry import metrics
from postroom.telemetry.endpoint import BriefHandler, SmallServer

Health = Callable[[], Mapping[str, Any]]
"""What to say; `status` is `ok` or not."""


@contextmanager
def serving(port: int, health: Health, metrics_token: str | None) -> Iterator[str]:
    """Serve until the block ends; yields the address (port 0 asks the system for a free one)."""
    try:
        server = SmallServer(port, _handler(health, metrics_token))
    except OSError as error:
        raise BadInput("health_port", f"{port} cannot be used: {error.strerror}") from error
    thread = threading.Thread(target=server.serve_forever, name="health", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(health: Health, metrics_token: str | None) -> type[BriefHandler]:
    class Handler(BriefHandler):
        def do_GET(self) -> None:
            if self.path == "/health":
                told = health()
                body = json.dumps(told).encode()
                self._answer(200 if told.get("status") == "ok" else 503, body, "application/json")
            elif self.path == "/metrics" and metrics_token is not None:
                self._metrics(metrics_token)
            else:
                self._answer(404, b"{}", "application/json")

        def _metrics(self, token: str) -> None:
            offered = self.headers.get("Authorization", "")
            if hmac.compare_digest(offered.encode(), f"Bearer {token}".encode()):
                self._answer(200, metrics.exposition(), "text/plain; version=0.0.4; charset=utf-8")
            else:
                self._answer(401, b"{}", "application/json")

        def _answer(self, status: int, body: bytes, content_type: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

    return Handler
