"""Mailboxes made up from a seed: ten years of mail of every kind, with the truth about each message kept apart."""

from postroom.gmail.sim.mailbox.generated import GeneratedMailbox
from postroom.gmail.sim.mailbox.letters import Category
from postroom.gmail.sim.mailbox.ugly import Ugly

__all__ = ["Category", "GeneratedMailbox", "Ugly"]
