"""Mailboxes generated from a seed: ten years of mail of every kind, with the truth about each message kept apart.

A seed gives the same bytes on every machine and every version of Python.
"""

from __future__ import annotations

from postroom.sim.gmail.generated.drafting import GeneratedCategory, MailDefect
from postroom.sim.gmail.generated.mailbox import GeneratedMailbox

__all__ = ["GeneratedCategory", "GeneratedMailbox", "MailDefect"]
