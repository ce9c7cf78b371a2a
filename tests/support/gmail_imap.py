"""A stand-in for Gmail's own IMAP server: its folders are views of one set of messages, and X-GM-EXT-1 gives their ids
and labels. It knows the few commands that `mailboxes.imap` uses, written after Google's description of the extension;
the real server may differ.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from postroom.mailboxes.imap.connection import ImapLogin, Security, server_address
from postroom.mailboxes.imap.folders import date_text
from tests.support.mail import OWNER

_CAPABILITIES = "IMAP4rev1 UIDPLUS CONDSTORE X-GM-EXT-1"
_ALL, _TRASH, _SPAM = "[Gmail]/All Mail", "[Gmail]/Trash", "[Gmail]/Spam"
_APART = {_TRASH: r"\Trash", _SPAM: r"\Spam"}
"""What lies there lies nowhere else."""
_SYSTEM = {"INBOX": r"\Inbox", "[Gmail]/Sent Mail": r"\Sent", **_APART}
_USES = {_ALL: r"\All", _TRASH: r"\Trash", _SPAM: r"\Junk", "[Gmail]/Sent Mail": r"\Sent"}


@dataclass(eq=False)
class GmailMessage:
    number: int
    """As X-GM-MSGID writes it; the API has it in hexadecimal."""
    raw: bytes
    labels: set[str]
    flags: set[str] = field(default_factory=set)
    modseq: int = 1
    received: datetime = datetime(2020, 1, 1, tzinfo=UTC)


@dataclass
class GmailImap:
    """`numbered` has the messages of each folder by their UIDs: a message that comes into a folder gets a new one."""

    messages: list[GmailMessage]
    shown: list[str] = field(default_factory=lambda: ["Work"])
    """The owner's labels that have a folder."""
    hidden: set[str] = field(default_factory=set)
    """Folders of Gmail's own that are not shown by IMAP."""
    capabilities: str = _CAPABILITIES
    port: int = 0
    heard: list[str] = field(default_factory=list)
    modseq: int = 1
    numbered: dict[str, dict[int, GmailMessage]] = field(default_factory=dict)
    _given: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._number()

    @property
    def _views(self) -> dict[str, str]:
        """What a message in a folder is labelled with; "" is all mail."""
        views = {_ALL: "", **_SYSTEM, **{label: label for label in self.shown}}
        return {folder: label for folder, label in views.items() if folder not in self.hidden}

    def _is_in(self, message: GmailMessage, folder: str) -> bool:
        apart = message.labels & set(_APART.values())
        return (
            self._views[folder] in apart if apart or folder in _APART else self._views[folder] in {"", *message.labels}
        )

    def _number(self) -> None:
        for folder in self._views:
            here = self.numbered.setdefault(folder, {})
            wanted = [each for each in self.messages if self._is_in(each, folder)]
            for uid in [uid for uid, each in here.items() if each not in wanted]:
                del here[uid]
            for each in wanted:
                if each not in here.values():
                    self._given[folder] = self._given.get(folder, 0) + 1
                    here[self._given[folder]] = each

    def login(self) -> ImapLogin:
        return ImapLogin(OWNER, server_address("127.0.0.1", self.port, Security.PLAIN), OWNER, "pass-of-gmail")

    def relabel(self, position: int, *labels: str) -> None:
        """As the web pages of Gmail do it."""
        self.modseq += 1
        self.messages[position].labels, self.messages[position].modseq = set(labels), self.modseq
        self._number()

    def add(self, message: GmailMessage) -> None:
        self.modseq += 1
        message.modseq = self.modseq
        self.messages.append(message)
        self._number()

    def _counts(self, folder: str) -> str:
        many, after = len(self.numbered[folder]), self._given.get(folder, 0) + 1
        return f"MESSAGES {many} UIDNEXT {after} UIDVALIDITY 7 HIGHESTMODSEQ {self.modseq}"

    def answer(self, words: str, selected: list[str]) -> list[bytes]:
        """The untagged responses to a command."""
        self.heard.append(words)
        name, _, rest = words.partition(" ")
        match name.upper():
            case "CAPABILITY":
                return [f"CAPABILITY {self.capabilities}".encode()]
            case "LIST":
                listed = [f'({_USES.get(folder, "")}) "/" "{folder}"' for folder in self._views]
                return [f"LIST {each}".encode() for each in [*listed, r'(\Important) "/" "[Gmail]/Important"']]
            case "CREATE":
                self.shown.append(shlex.split(rest)[0])
                self._number()
            case "STATUS":
                folder = shlex.split(rest.partition(" (")[0])[0]
                return [f'STATUS "{folder}" ({self._counts(folder)})'.encode()]
            case "EXAMINE" | "SELECT":
                selected[:] = [shlex.split(rest.partition(" (")[0])[0]]
                codes = re.findall(r"(UID\w+|HIGHESTMODSEQ) (\d+)", self._counts(selected[0]))
                answers = [
                    f"{len(self.numbered[selected[0]])} EXISTS",
                    *(f"OK [{code} {value}] ok" for code, value in codes),
                ]
                return [each.encode() for each in answers]
            case "UID":
                return self._uid(rest, selected[0])
        return []

    def _uid(self, words: str, folder: str) -> list[bytes]:
        name, _, rest = words.partition(" ")
        here = self.numbered[folder]
        uids = _uids(rest.split()[0], max(here, default=0)) if name.upper() != "SEARCH" else set()
        some = [(uid, each) for uid, each in here.items() if uid in uids]
        match name.upper():
            case "SEARCH":
                return [
                    " ".join(["SEARCH", *(str(uid) for uid, each in here.items() if _matches(each, rest))]).encode()
                ]
            case "STORE" | "COPY" | "EXPUNGE":
                for _, each in some:
                    self._change(each, name.upper(), rest, folder)
                return []
        since = re.search(r"CHANGEDSINCE (\d+)", rest)
        return [_fetched(uid, each, rest) for uid, each in some if since is None or each.modseq > int(since[1])]

    def _change(self, message: GmailMessage, verb: str, words: str, folder: str) -> None:
        labels = set(message.labels)
        if verb == "COPY":
            goal = shlex.split(words.partition(" ")[2])[0]
            labels = {self._views[goal]} if goal in _APART else (labels | {self._views[goal]}) - {"", *_APART.values()}
        elif verb == "EXPUNGE":
            labels.discard(self._views[folder])
        else:
            changed = message.flags if "FLAGS" in words else labels
            (changed.add if " +" in words else changed.discard)(shlex.split(_in_brackets(words))[0])
        message.flags.discard(r"\Deleted")
        self.relabel(self.messages.index(message), *labels)


def _in_brackets(words: str) -> str:
    text = words.partition("(")[2].rstrip(")")
    return text if '"' in text else f"'{text}'"


def _matches(message: GmailMessage, words: str) -> bool:
    """Of a search for a word or for an id; all, where there is neither."""
    number = re.search(r"X-GM-MSGID (\d+)", words)
    if number is not None:
        return message.number == int(number[1])
    return "".join(shlex.split(words.partition("X-GM-RAW ")[2])).encode() in message.raw


def _uids(text: str, most: int) -> set[int]:
    found: set[int] = set()
    for part in text.replace("*", str(most)).split(","):
        first, _, last = part.partition(":")
        ends = sorted((int(first), int(last or first)))
        found |= set(range(ends[0], ends[1] + 1))
    return found


def _fetched(uid: int, message: GmailMessage, wanted: str) -> bytes:
    labels = " ".join('"' + label.replace("\\", "\\\\") + '"' for label in sorted(message.labels - {*_APART.values()}))
    items = [f"UID {uid}", f"FLAGS ({' '.join(sorted(message.flags))})", f"MODSEQ ({message.modseq})"]
    items += [f"INTERNALDATE {date_text(message.received).decode()}"] if "INTERNALDATE" in wanted else []
    items += [f"RFC822.SIZE {len(message.raw)}"] if "RFC822.SIZE" in wanted else []
    items += [f"X-GM-MSGID {message.number}"] if "X-GM-MSGID" in wanted else []
    items += [f"X-GM-LABELS ({labels})"] if "X-GM-LABELS" in wanted else []
    body = b" BODY[] {%d}\r\n%b" % (len(message.raw), message.raw) if "BODY.PEEK[]" in wanted else b""
    return b"%d FETCH (%b%b)" % (uid, " ".join(items).encode(), body)


@contextlib.asynccontextmanager
async def gmail_imap(messages: list[GmailMessage], **server_is: Any) -> AsyncIterator[GmailImap]:
    server, open_ones = GmailImap(messages, **server_is), dict[asyncio.StreamWriter, asyncio.Task[object] | None]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_ones[writer] = asyncio.current_task()
        selected: list[str] = []
        writer.write(f"* OK [CAPABILITY {server.capabilities}] ready\r\n".encode())
        while line := (await reader.readline()).decode().strip():
            tag, _, words = line.partition(" ")
            answers = server.answer(words, selected)
            writer.write(b"".join(b"* " + each + b"\r\n" for each in answers) + f"{tag} OK done\r\n".encode())
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        for writer in open_ones:
            writer.transport.abort()
        await asyncio.gather(*(task for task in open_ones.values() if task), return_exceptions=True)
