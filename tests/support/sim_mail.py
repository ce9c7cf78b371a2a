"""Small mail for tests of the stand-in."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Mapping
from email.message import EmailMessage

from postroom.gmail.sim.list_source import ListedMail, ListSource

OWNER = "owner@example.com"
START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


def letter(
    subject: str = "Hello",
    body: str = "How are you?\n",
    *,
    sender: str = "Ann <ann@friends.example>",
    to: str = OWNER,
    headers: Mapping[str, str] | None = None,
    attachment: tuple[str, bytes] | None = None,
) -> bytes:
    message = EmailMessage()
    message["From"] = sender
    message["To"] = to
    message["Subject"] = subject
    for name, value in (headers or {}).items():
        message[name] = value
    message.set_content(body)
    if attachment:
        name, content = attachment
        message.add_attachment(content, maintype="application", subtype="pdf", filename=name)
    return message.as_bytes()


def mailbox(count: int, **labels: str) -> ListSource:
    """Letters an hour apart, the oldest first; every letter has a word of its own in subject and body."""
    mails = (
        ListedMail(
            letter(
                f"Letter number{index}", f"The word is body{index}.\n", headers={"Message-ID": f"<{index}@x.example>"}
            ),
            START_MS + index * HOUR_MS,
        )
        for index in range(count)
    )
    return ListSource(mails, email=OWNER, labels=labels)


def encoded(raw: bytes) -> str:
    return urlsafe_b64encode(raw).decode()
