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

from postroom.mailboxes.imap.connection import ImapLogin, Security, server_address
from tests.support.mail import OWNER

_CAPABILITIES = "IMAP4rev1 UIDPLUS CONDSTORE X-GM-EXT-1"
_ALL = "[Gmail]/All Mail"
_VIEWS = {"INBOX": r"\Inbox", "[Gmail]/Sent Mail": r"\Sent", "Work": "Work"}
_LISTED = [
    r'() "/" "INBOX"',
    r'(\All) "/" "[Gmail]/All Mail"',
    r'(\Sent) "/" "[Gmail]/Sent Mail"',
    r'(\Important) "/" "[Gmail]/Important"',
    r'() "/" "Work"',
]


@dataclass(eq=False)
class GmailMessage:
    number: int
    """As X-GM-MSGID writes it; the API has it in hexadecimal."""
    raw: bytes
    labels: set[str]
    flags: set[str] = field(default_factory=set)
    modseq: int = 1


@dataclass
class GmailImap:
    """`numbered` has the messages of each folder by their UIDs: a message that comes into a folder gets a new one."""

    messages: list[GmailMessage]
    port: int = 0
    heard: list[str] = field(default_factory=list)
    modseq: int = 1
    numbered: dict[str, dict[int, GmailMessage]] = field(default_factory=dict)
    _given: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._number()

    def _number(self) -> None:
        for folder in (_ALL, *_VIEWS):
            here = self.numbered.setdefault(folder, {})
            wanted = [each for each in self.messages if folder == _ALL or _VIEWS[folder] in each.labels]
            for uid in [uid for uid, each in here.items() if each not in wanted]:
                del here[uid]
            for each in wanted:
                if each not in here.values():
                    self._given[folder] = self._given.get(folder, 0) + 1
                    here[self._given[folder]] = each

    def login(self) -> ImapLogin:
        return ImapLogin(OWNER, server_address("127.0.0.1", self.port, Security.PLAIN), OWNER, "secret")

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
                return [f"CAPABILITY {_CAPABILITIES}".encode()]
            case "LIST":
                return [f"LIST {each}".encode() for each in _LISTED]
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
                wanted = "".join(shlex.split(rest.partition("X-GM-RAW ")[2])).encode()  # all, where it is empty
                return [" ".join(["SEARCH", *(str(uid) for uid, each in here.items() if wanted in each.raw)]).encode()]
            case "STORE":
                for _, each in some:
                    [label] = shlex.split(rest.partition("(")[2].rstrip(")"))
                    (each.labels.add if "+X-GM-LABELS" in rest else each.labels.discard)(label)
                    self.relabel(self.messages.index(each), *each.labels)
                return []
        since = re.search(r"CHANGEDSINCE (\d+)", rest)
        return [_fetched(uid, each, rest) for uid, each in some if since is None or each.modseq > int(since[1])]


def _uids(text: str, most: int) -> set[int]:
    found: set[int] = set()
    for part in text.replace("*", str(most)).split(","):
        first, _, last = part.partition(":")
        ends = sorted((int(first), int(last or first)))
        found |= set(range(ends[0], ends[1] + 1))
    return found


def _fetched(uid: int, message: GmailMessage, wanted: str) -> bytes:
    labels = " ".join('"' + label.replace("\\", "\\\\") + '"' for label in sorted(message.labels))
    items = [f"UID {uid}", f"FLAGS ({' '.join(sorted(message.flags))})", f"MODSEQ ({message.modseq})"]
    items += ['INTERNALDATE "01-Jan-2020 00:00:00 +0000"'] if "INTERNALDATE" in wanted else []
    items += [f"RFC822.SIZE {len(message.raw)}"] if "RFC822.SIZE" in wanted else []
    items += [f"X-GM-MSGID {message.number}"] if "X-GM-MSGID" in wanted else []
    items += [f"X-GM-LABELS ({labels})"] if "X-GM-LABELS" in wanted else []
    body = b" BODY[] {%d}\r\n%b" % (len(message.raw), message.raw) if "BODY.PEEK[]" in wanted else b""
    return b"%d FETCH (%b%b)" % (uid, " ".join(items).encode(), body)


@contextlib.asynccontextmanager
async def gmail_imap(messages: list[GmailMessage]) -> AsyncIterator[GmailImap]:
    server, open_ones = GmailImap(messages), dict[asyncio.StreamWriter, asyncio.Task[object] | None]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_ones[writer] = asyncio.current_task()
        selected: list[str] = []
        writer.write(f"* OK [CAPABILITY {_CAPABILITIES}] ready\r\n".encode())
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
