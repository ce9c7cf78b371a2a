"""How the hostile mail is written."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import EmailMessage
from typing import Any

from postroom.mail.parsing import parse_mail
from postroom.mail.triage_headers import triage_headers
from postroom.triage.prompt import MailToJudge

RECEIVED = datetime(2026, 3, 4, 8, 30, tzinfo=UTC)


@dataclass(frozen=True)
class Injection:
    name: str
    """What kind it is."""
    text: str = ""
    html: str | None = None
    subject: str = "A question"
    sender: str = "Mallory Stone <mallory@elsewhere.example>"
    headers: dict[str, str] = field(default_factory=dict)
    attachment: str | None = None
    """A file's name."""
    is_plain: bool = False
    """It asks as anybody might ask a person, so that nothing tells it from honest mail."""

    def raw(self) -> bytes:
        mail = EmailMessage()
        mail["From"], mail["To"], mail["Subject"] = self.sender, "me@example.org", self.subject
        for name, value in self.headers.items():
            mail[name] = value
        if self.text or self.html is None:
            mail.set_content(self.text or "See above.")
        if self.html is not None and self.text:
            mail.add_alternative(self.html, subtype="html")
        elif self.html is not None:
            mail.set_content(self.html, subtype="html")
        if self.attachment is not None:
            mail.add_attachment(b"%PDF-1.4", maintype="application", subtype="pdf", filename=self.attachment)
        return mail.as_bytes()

    def mail(self) -> MailToJudge:
        """As it is stored once it was taken in."""
        parsed = parse_mail(self.raw())
        sender = parsed.from_[0]
        return MailToJudge(
            sender=sender.canonical,
            sender_name=sender.display_name,
            subject=parsed.subject,
            text=parsed.best_text,
            received_at=RECEIVED,
            headers=triage_headers(parsed.headers),
            labels=("INBOX", "UNREAD"),
            attachments=tuple(attachment.filename for attachment in parsed.attachments),
        )

    def row(self) -> dict[str, Any]:
        """What a message has of the mail itself, once it was taken in."""
        mail = self.mail()
        return {
            "sender_identity": mail.sender,
            "sender_name": mail.sender_name,
            "subject": mail.subject,
            "text": mail.text,
            "headers": mail.headers,
            "labels": list(mail.labels),
            "attachments": [{"filename": name} for name in mail.attachments],
        }
