"""Headers that every answer carries. A page that needs others sets its own; what it sets is kept."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Send

CONTENT_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "frame-src 'self'",
        "base-uri 'none'",
    )
)
_HEADERS = {
    "content-security-policy": CONTENT_POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "cache-control": "no-store",
    # Looking up the host of a link that nobody clicked would tell its owner that the mail was opened.
    "x-dns-prefetch-control": "off",
}
_ONLY_TLS = "max-age=31536000"


def dressed(send: Send, *, is_secure: bool) -> Send:
    wanted = _HEADERS | ({"strict-transport-security": _ONLY_TLS} if is_secure else {})

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in wanted.items():
                headers.setdefault(name, value)
        await send(message)

    return sending
