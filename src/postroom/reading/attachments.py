"""The text of an attached file, where reading it takes no more than what reads mail: plain text, HTML, calendars, and
enclosed messages. Other kinds of files are not read.
"""

from __future__ import annotations

from postroom.mail.charsets import decode_text
from postroom.mail.html.text import html_to_text
from postroom.mail.mime import Attachment
from postroom.reading.mail import read_mail

MOST_BYTES = 2 << 20
"""Of a file that are read."""
_TEXT_TYPES = frozenset({"application/json", "application/xml", "application/ics", "application/x-yaml"})
_TEXT_ENDINGS = (".txt", ".text", ".md", ".csv", ".tsv", ".log", ".json", ".xml", ".yaml", ".yml", ".ics", ".vcf")
_HTML_ENDINGS = (".html", ".htm")
_UNSPECIFIC = frozenset({"application/octet-stream", "application/x-unknown", ""})


def attachment_text(attachment: Attachment) -> str | None:
    """None for a kind of file that is not read, or that is not the text it claims to be."""
    kind, name = attachment.content_type.lower(), attachment.filename.lower()
    if kind == "message/rfc822":
        return read_mail(attachment.content()).best_text
    is_html = kind == "text/html" or (kind in _UNSPECIFIC and name.endswith(_HTML_ENDINGS))
    is_text = kind.startswith("text/") or kind in _TEXT_TYPES or (kind in _UNSPECIFIC and name.endswith(_TEXT_ENDINGS))
    if not (is_html or is_text):
        return None
    content = attachment.content()[:MOST_BYTES]
    if b"\0" in content and not content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return None
    text, _ = decode_text(content, "utf-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else None)
    return html_to_text(text) if is_html else text
