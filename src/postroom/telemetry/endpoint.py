"""`/metrics` for a process without a web server of its own: loopback only, and only with the token."""

from __future__ import annotations

import hmac
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from postroom.telemetry import metrics


@contextmanager
def serve(port: int, token: str) -> Iterator[int]:
    """Serve until the block ends; yields the port in use (0 asks the system for a free one)."""
    server = ThreadingHTTPServer(("127.0.0.1", port), _handler_for(token))
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler_for(token: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
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

        def log_message(self, format: str, *args: object) -> None:
            """Scrapes are not worth a line."""

    return Handler
