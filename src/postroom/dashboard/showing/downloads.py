"""Files of mail, handed out to be saved and never to be shown: whatever they claim to be, no browser opens them."""

from __future__ import annotations

from urllib.parse import quote

from starlette.responses import Response

from postroom.mail.bodies import safe_filename

ANYTHING = "application/octet-stream"
_POLICY = "default-src 'none'; sandbox"


def download(content: bytes, name: str, media_type: str = ANYTHING) -> Response:
    """Under a name that is no path, hides no ending, and breaks no header."""
    name = safe_filename(name.encode("utf-8", "replace").decode()) or "attachment"
    plain = "".join(char if char.isascii() and char.isprintable() and char not in '"\\%;' else "_" for char in name)
    disposition = f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
    headers = {
        "content-disposition": disposition,
        "content-security-policy": _POLICY,
        "x-content-type-options": "nosniff",
        "x-download-options": "noopen",
    }
    return Response(content, media_type=media_type, headers=headers)
