"""`/metrics` for a process without a web server of its own: loopback only, and only with the token."""

from __future__ import annotations

import hmac
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from postroom.telemetry import metrics

_CONNECTIONS = 16


class LoopbackServer(ThreadingHTTPServer):
    """On loopback, for a few short requests at once: the oldest connection makes room for the next."""

    block_on_close = False

    def __init__(self, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", port), handler)
        self._open: dict[socket.socket, None] = {}  # the oldest first
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            oldest = next(iter(self._open)) if len(self._open) >= _CONNECTIONS else None
            if oldest is not None:
                del self._open[oldest]
                _cut(oldest)
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that disconnected is not logged."""


class TimeoutHandler(BaseHTTPRequestHandler):
    """Gives up on a peer that is silent for a few seconds."""

    timeout = 5.0

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged."""


def _cut(connection: socket.socket) -> None:
    """Its thread reads the end of the stream, and closes it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has ended by itself


@contextmanager
def serve(port: int, token: str) -> Iterator[int]:
    """Serve until the block ends; yields the port in use (0 asks the system for a free one)."""
    server = LoopbackServer(port, _handler_for(token))
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler_for(token: str) -> type[TimeoutHandler]:
    class Handler(TimeoutHandler):
        def do_GET(self) -> None:
            offered = self.headers.get("Authorization", "")
            if not hmac.compare_digest(offered.encode(), f"Bearer {token}".encode()):
                self.send_response(401)
                self.send_header("WWW-Authenticate", "Bearer")
                self.end_headers()
            elif self.path != "/metrics":
                self.send_error(404)
            else:
                body = metrics.exposition()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

    return Handler
