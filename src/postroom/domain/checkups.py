"""What a check-up found: one finding for each thing checked, with a remedy where something is wrong."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Check(StrEnum):
    """What was looked at, in the order in which one rests on the other."""

    HOME = "home"
    DISK = "disk"
    DATABASE = "database"
    ARCHIVE = "archive"
    VAULT = "vault"
    AUDIT = "audit"
    EXTRAS = "extras"
    MODEL = "model"
    DIGEST = "digest"
    READER = "reader"
    DNS = "dns"
    NETWORK = "network"
    TLS = "tls"
    CLOCK = "clock"
    SERVICE = "service"
    AUTH = "auth"
    SCOPE = "scope"
    QUOTA = "quota"
    MAIL = "mail"


class CheckVerdict(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    check: Check
    verdict: CheckVerdict
    about: str
    """The thing looked at: a folder, a host, an account."""
    message: str
    remedy: str = ""
    account: str = ""
    """Whose check-up it was; empty for what concerns all."""

    @property
    def text(self) -> str:
        return f"{self.message} {self.remedy}".rstrip()


def first_failure(findings: Iterable[Finding]) -> Finding | None:
    return next((finding for finding in findings if finding.verdict is CheckVerdict.FAILED), None)
