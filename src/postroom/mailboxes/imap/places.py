"""Where messages lie in an IMAP mailbox, and what that says about their labels. Pure, but for the port at the end.

A message is known by the SHA-256 of its bytes. A place is a folder, its UIDVALIDITY and a UID: it says where the
message lies now and is never a key. A message in three folders is one message with three places. A place whose bytes
were not read yet has no message; after a UIDVALIDITY reset places are matched with what they held before.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol
from urllib.parse import quote, unquote

from postroom.mailboxes.errors import HistoryExpired
from postroom.mailboxes.imap.wire import decode_folder
from postroom.mailboxes.protocol import Cursor, LabelId, MailboxLabel, MessageId, Span

SEEN, FLAGGED, DELETED = "\\seen", "\\flagged", "\\deleted"
"""Flags are compared in small letters."""


class FolderRole(StrEnum):
    """What a folder is for, as its special use (RFC 6154) or its name says."""

    INBOX = "inbox"
    SENT = "sent"
    DRAFTS = "drafts"
    TRASH = "trash"
    SPAM = "spam"
    ARCHIVE = "archive"
    """Mail that has no label: it was taken out of the inbox."""
    ALL = "all"
    """A view of all mail, which nothing is moved out of."""
    USER = "user"


ROLE_LABELS = {
    FolderRole.INBOX: "INBOX",
    FolderRole.SENT: "SENT",
    FolderRole.DRAFTS: "DRAFT",
    FolderRole.TRASH: "TRASH",
    FolderRole.SPAM: "SPAM",
}
UNREAD, STARRED, IMPORTANT = "UNREAD", "STARRED", "IMPORTANT"
SYSTEM_LABELS = (*ROLE_LABELS.values(), UNREAD, STARRED)
UNLABELLED = frozenset({FolderRole.ARCHIVE, FolderRole.ALL})

_SPECIAL_USE = {
    "\\sent": FolderRole.SENT,
    "\\drafts": FolderRole.DRAFTS,
    "\\trash": FolderRole.TRASH,
    "\\junk": FolderRole.SPAM,
    "\\archive": FolderRole.ARCHIVE,
    "\\all": FolderRole.ALL,
}
_USUAL_NAMES = {
    FolderRole.SENT: ("sent", "sent items", "sent messages", "sent mail", "gesendet"),
    FolderRole.DRAFTS: ("drafts", "draft", "entwürfe"),
    FolderRole.TRASH: ("trash", "deleted items", "deleted messages", "bin", "papierkorb"),
    FolderRole.SPAM: ("junk", "spam", "junk e-mail", "bulk mail", "junk mail"),
    FolderRole.ARCHIVE: ("archive", "archives", "archiv"),
}
NEW_FOLDERS = {
    FolderRole.SENT: "Sent",
    FolderRole.DRAFTS: "Drafts",
    FolderRole.TRASH: "Trash",
    FolderRole.SPAM: "Junk",
    FolderRole.ARCHIVE: "Archive",
}
"""What a folder is called that a mailbox lacks and that is needed."""
_GMAIL_FOLDERS = ("[gmail]/", "[google mail]/")
"""Where Gmail's own server has its system folders, whatever they are called there in the owner's language."""
_NOT_LISTED = frozenset({"\\noselect", "\\nonexistent", "\\flagged", "\\important"})
"""No folder at all, or a view of mail that lies elsewhere."""
_NO_LABELS = frozenset(
    {"$forwarded", "forwarded", "$mdnsent", "mdnsent", "nonjunk", "$notjunk", "notjunk", "junkrecorded", "$notphishing"}
)
"""Keywords that clients use among themselves."""
KEYWORD = "keyword:"
GMAIL = "X-GM-EXT-1"
"""The capability of Gmail's own IMAP server, which gives the ids and labels of its API."""
GMAIL_LABEL = "x-gm-label:"
"""Before a label that Gmail says a message has; it is kept among the flags, and is the label's id where the label has
no folder."""
_GMAIL_SYSTEM = {
    "\\inbox": "INBOX",
    "\\sent": "SENT",
    "\\draft": "DRAFT",
    "\\starred": STARRED,
    "\\important": IMPORTANT,
}
_GMAIL_ID = re.compile(r"[0-9a-f]{1,16}")
_FOLDER_ID = re.compile(r"folder-[0-9a-f]{16}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
UNREADABLE = "unread-"


@dataclass(frozen=True, slots=True)
class ListedFolder:
    """A folder as the server lists it."""

    wire: str
    delimiter: str
    attributes: frozenset[str]
    """In small letters."""

    @property
    def is_mail(self) -> bool:
        return not self.attributes & _NOT_LISTED


def roles_of(listed: Sequence[ListedFolder]) -> dict[str, FolderRole]:
    """The role of each folder, by its name on the wire; each but `user` belongs to one folder. At Gmail, names say
    nothing: a label may be called Archive, and is a label like any other."""
    roles: dict[str, FolderRole] = {}
    taken: set[FolderRole] = set()

    def give(folder: ListedFolder, role: FolderRole | None) -> None:
        if role is not None and role not in taken and folder.wire not in roles:
            roles[folder.wire] = role
            taken.add(role)

    for folder in listed:
        give(folder, FolderRole.INBOX if folder.wire.upper() == "INBOX" else None)
    for folder in listed:
        give(folder, next((_SPECIAL_USE[each] for each in sorted(folder.attributes) if each in _SPECIAL_USE), None))
    is_gmail = any(roles.get(folder.wire) is FolderRole.ALL and _is_gmails(folder.wire) for folder in listed)
    for folder in listed if not is_gmail else ():
        name = _plain_name(folder.wire, folder.delimiter)
        give(folder, next((role for role, names in _USUAL_NAMES.items() if name in names), None))
    return {folder.wire: roles.get(folder.wire, FolderRole.USER) for folder in listed}


def _is_gmails(wire: str) -> bool:
    return wire.casefold().startswith(_GMAIL_FOLDERS)


def _plain_name(wire: str, delimiter: str) -> str:
    name = decode_folder(wire).casefold()
    return name.removeprefix(f"inbox{delimiter}") if delimiter else name


@dataclass(frozen=True, slots=True)
class FolderState:
    """A folder, and up to where its places are known."""

    id: str
    """Stays when the folder is renamed."""
    wire: str
    delimiter: str = "/"
    role: FolderRole = FolderRole.USER
    uidvalidity: int = 0
    """0: it was never looked into."""
    uidnext: int = 1
    modseq: int | None = None
    messages: int = 0
    revision: int = 0
    """Raised with every change, so that of two processes only one records it."""

    @property
    def label_id(self) -> LabelId | None:
        return None if self.role in UNLABELLED else ROLE_LABELS.get(self.role, self.id)

    @property
    def label_name(self) -> str:
        name = decode_folder(self.wire)
        shown = name.replace(self.delimiter, "/") if self.delimiter else name
        return f"Folder/{shown}" if shown.upper() in SYSTEM_LABELS else shown


def is_folder_id(text: str) -> bool:
    return _FOLDER_ID.fullmatch(text) is not None


PlaceKey = tuple[str, int, int]
"""A folder's id, its UIDVALIDITY and a UID."""


class Place(NamedTuple):
    """A tuple, because there is one for every message, made several times in a walk."""

    folder_id: str
    uidvalidity: int
    uid: int
    flags: frozenset[str]
    """In small letters, without `\\recent`."""
    received_s: int
    size: int
    message_id: MessageId | None = None
    """None: its bytes were not read yet."""
    email_id: str = ""
    """RFC 8474, where the server has it."""
    header_id: str = ""
    """The Message-ID, hashed."""
    is_provisional: bool = False
    """Matched without its bytes. They are read before anything is removed."""
    seen: int = 0
    """The generation in which it was first seen."""

    @property
    def key(self) -> PlaceKey:
        return self.folder_id, self.uidvalidity, self.uid


def by_message(places: Iterable[Place]) -> defaultdict[MessageId, list[Place]]:
    """Without those whose bytes were not read yet."""
    found: defaultdict[MessageId, list[Place]] = defaultdict(list)
    for place in places:
        if place.message_id is not None:
            found[place.message_id].append(place)
    return found


Folders = Mapping[str, FolderState]
"""By id."""


def archive_of(folders: Folders) -> FolderState | None:
    """The folder of mail that has no label: the archive, or the view of all mail at Gmail, where nothing else is
    needed."""
    archive = next((folder for folder in folders.values() if folder.role is FolderRole.ARCHIVE), None)
    return archive or _all_mail_of_gmail(folders)


def _all_mail_of_gmail(folders: Folders) -> FolderState | None:
    """None where the mailbox is not Gmail's."""
    everything = (folder for folder in folders.values() if folder.role is FolderRole.ALL)
    return next((folder for folder in everything if _is_gmails(folder.wire)), None)


def labels_of(places: Iterable[Place], folders: Folders) -> frozenset[LabelId]:
    """The labels of one message. What was read or starred in one folder is read or starred."""
    listed = list(places)
    if not listed:
        return frozenset()
    flags = frozenset[str]().union(*(place.flags for place in listed))
    labels = {folders[place.folder_id].label_id for place in listed if place.folder_id in folders}
    found = {label for label in labels if label is not None}
    found |= {KEYWORD + flag for flag in flags if is_label(flag)}
    found |= {label.id for label in _without_folder(flags, folders)}
    if SEEN not in flags:
        found.add(UNREAD)
    if FLAGGED in flags:
        found.add(STARRED)
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class FlagFilter:
    """Narrows a listing of places."""

    text: str
    """In the flags, with a space before and after each."""
    is_there: bool = True
    """Of messages that have it at some place, or whose bytes were not read yet; else the places without it."""


def flag_behind(label_id: LabelId | None) -> FlagFilter | None:
    """What lets through every message that has this label, where no folder makes the label."""
    if label_id == UNREAD:
        return FlagFilter(f" {SEEN} ", is_there=False)
    if label_id == STARRED:
        return FlagFilter(f" {FLAGGED} ")
    if label_id in SYSTEM_LABELS or label_id == IMPORTANT:
        return FlagFilter(f" {GMAIL_LABEL}")
    if label_id is not None and label_id.startswith((KEYWORD, GMAIL_LABEL)):
        return FlagFilter(f" {label_id.removeprefix(KEYWORD)} ")
    return None


def is_label(flag: str) -> bool:
    """Whether a keyword is one of its owner's."""
    return not flag.startswith(("\\", GMAIL_LABEL)) and flag not in _NO_LABELS


def _without_folder(flags: Collection[str], folders: Folders) -> list[MailboxLabel]:
    """The labels that Gmail gives and that are no folders here, such as IMPORTANT and those hidden from IMAP. Where a
    label has a folder, the places in it say who has it."""
    here = [flag for flag in sorted(flags) if flag.startswith(GMAIL_LABEL)]
    if not here:
        return []
    shown = {folder.label_name.casefold() for folder in folders.values()}
    shown |= {folder.label_id.casefold() for folder in folders.values() if folder.label_id is not None}
    found = []
    for flag in here:
        name = unquote(flag.removeprefix(GMAIL_LABEL))
        system = _GMAIL_SYSTEM.get(name.casefold())
        if (system or name).casefold() not in shown | {STARRED.casefold()}:
            found.append(MailboxLabel(system or flag, system or name, is_system=system is not None))
    return found


def mailbox_labels(folders: Folders, keywords: Collection[str]) -> tuple[MailboxLabel, ...]:
    """Gmail has IMPORTANT even while no message has it."""
    of_gmail = [] if _all_mail_of_gmail(folders) is None else [IMPORTANT]
    system = [MailboxLabel(name, name, is_system=True) for name in (*SYSTEM_LABELS, *of_gmail)]
    owned = [
        MailboxLabel(folder.id, folder.label_name)
        for folder in sorted(folders.values(), key=lambda each: each.label_name)
        if folder.role is FolderRole.USER
    ]
    taken = {label.name.casefold() for label in owned}
    marks = [
        MailboxLabel(KEYWORD + each, f"Keyword/{each}")
        for each in sorted(keywords)
        if is_label(each) and f"keyword/{each}" not in taken
    ]
    hidden = [label for label in _without_folder(keywords, folders) if label not in system]
    return (*system, *owned, *marks, *hidden)


def digest(raw: bytes) -> MessageId:
    return hashlib.sha256(raw).hexdigest()


def is_digest(message_id: MessageId) -> bool:
    return _DIGEST.fullmatch(message_id) is not None


def gmail_id(number: int | None) -> MessageId | None:
    """Gmail's id of a message as its API writes it, from X-GM-MSGID."""
    return f"{number:x}" if number and number < 1 << 64 else None


def is_gmail_id(message_id: MessageId) -> bool:
    return _GMAIL_ID.fullmatch(message_id) is not None


def gmail_label(name: str) -> str:
    """A label of X-GM-LABELS as it is kept among the flags."""
    return GMAIL_LABEL + quote(decode_folder(name), safe="")


def unreadable_id(folder: FolderState, uid: int) -> MessageId:
    """The id of a message whose bytes the server cannot give, until it can."""
    place = f"{folder.id}\0{folder.uidvalidity}\0{uid}"
    return UNREADABLE + hashlib.sha256(place.encode()).hexdigest()[:32]


_MESSAGE_ID = re.compile(rb"^message-id[ \t]*:[ \t]*((?:.|\n[ \t])*)", re.IGNORECASE | re.MULTILINE)
_BRACKETED = re.compile(rb"<[^<>\s]{1,996}>")
_HEAD_END = re.compile(rb"\r?\n\r?\n")


def header_id_of(head: bytes) -> str:
    """The Message-ID in a message's headers as the archive reads it, hashed; empty where there is none."""
    end = _HEAD_END.search(head)
    text = head[: len(head) if end is None else end.start()].replace(b"\r\n", b"\n")
    found = _MESSAGE_ID.search(text)
    if found is None:
        return ""
    bracketed = _BRACKETED.search(found[1])
    return _hashed_id(b"".join(found[1].split()) if bracketed is None else bracketed[0])


def header_id_for(message_id: str) -> str:
    """What `header_id_of` gives for a message with this Message-ID."""
    return _hashed_id("".join(message_id.split()).encode())


def _hashed_id(value: bytes) -> str:
    bare = value.strip(b"<>")
    return hashlib.sha256(b"<" + bare + b">").hexdigest()[:32] if bare else ""


def match_again(before: Sequence[Place], now: Sequence[Place]) -> dict[int, Place]:
    """What the places of a folder held before a UIDVALIDITY reset or a rename, by the UIDs that they have now.

    By the server's own id of the message where there is one, else by Message-ID, size and date together, and only
    where these are unique on both sides: what is ambiguous is read again. Messages that the server tells apart are
    never taken for each other.
    """
    found: dict[int, Place] = {}
    for key in (_by_email_id, _by_header):
        old, new = ([key(each) for each in places] for places in (before, now))
        alone = _unique(old) & _unique(new)
        known = dict(zip(old, before, strict=True))
        taken = {place.uid for place in found.values()}
        for place, mark in zip(now, new, strict=True):
            was = known.get(mark) if mark is not None and mark in alone and place.uid not in found else None
            if was is not None and was.message_id is not None and was.uid not in taken and not _is_other(was, place):
                found[place.uid] = was
    return found


def _is_other(one: Place, other: Place) -> bool:
    return bool(one.email_id and other.email_id) and one.email_id != other.email_id


def _unique(marks: Sequence[object]) -> set[object]:
    return {each for each, count in Counter(marks).items() if count == 1}


def _by_email_id(place: Place) -> object:
    return place.email_id or None


def _by_header(place: Place) -> object:
    return (place.header_id, place.size, place.received_s) if place.header_id else None


@dataclass(frozen=True, slots=True)
class FolderChange:
    """What a look into a folder found, from one state to the next."""

    before: FolderState
    after: FolderState
    new: Sequence[Place] = ()
    """Also those that are in the store already, with what is known of them now."""
    flags: Mapping[int, frozenset[str]] = field(default_factory=dict)
    """By UID, those that differ from what was known."""
    gone: Sequence[Place] = ()


_GENERATION_DIGITS = 18


class EntryKind(StrEnum):
    ADDED = "added"
    DELETED = "deleted"
    RELABELLED = "relabelled"


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One change of one message."""

    generation: int
    message_id: MessageId
    kind: EntryKind
    add: frozenset[LabelId] = frozenset()
    remove: frozenset[LabelId] = frozenset()
    now: frozenset[LabelId] = frozenset()


def entry_between(
    generation: int,
    message_id: MessageId,
    before: Sequence[Place],
    after: Sequence[Place],
    folders: tuple[Folders, Folders],
) -> JournalEntry | None:
    """What became of a message whose places changed; None where its labels stayed."""
    then, now = labels_of(before, folders[0]), labels_of(after, folders[1])
    if not before and not after:
        return None
    if not before:
        return JournalEntry(generation, message_id, EntryKind.ADDED, now=now)
    if not after:
        return JournalEntry(generation, message_id, EntryKind.DELETED, remove=then)
    if then == now:
        return None
    return JournalEntry(generation, message_id, EntryKind.RELABELLED, now - then, then - now, now)


@dataclass(frozen=True, slots=True)
class JournalState:
    """The journal of an account's changes. A cursor names the epoch, which another journal does not have, and the
    generation up to which everything is known."""

    epoch: str
    generation: int
    floor: int
    """Changes up to this generation are forgotten."""

    @property
    def cursor(self) -> Cursor:
        return self.cursor_at(self.generation)

    def cursor_at(self, generation: int) -> Cursor:
        """Digits alone, as Gmail's history ids are."""
        return f"{self.epoch}{generation:0{_GENERATION_DIGITS}d}"

    def generation_at(self, cursor: Cursor) -> int:
        """Raises HistoryExpired where the changes since then are not known."""
        epoch, number = cursor[:-_GENERATION_DIGITS], cursor[-_GENERATION_DIGITS:]
        since = int(number) if number.isdigit() and number.isascii() else -1
        if epoch != self.epoch or not self.floor <= since <= self.generation:
            raise HistoryExpired("cursor", "what changed in the mailbox since then is no longer known here")
        return since


@dataclass(frozen=True, slots=True)
class IdentifiedPlace:
    """What the bytes at a place are."""

    place: Place
    message_id: MessageId
    header_id: str = ""


class PlaceStore(Protocol):
    """Keeps the places of one account and the journal of their changes. Each method is one transaction."""

    async def folders(self) -> dict[str, FolderState]: ...

    async def keywords(self) -> frozenset[str]: ...

    async def journal(self) -> JournalState: ...

    async def entries(self, since: int) -> Sequence[JournalEntry]:
        """Changes after this generation, oldest first. Those up to it need not be kept any longer."""

    async def put_folders(self, folders: Sequence[FolderState], gone: Collection[str]) -> None:
        """Record folders that are new or renamed, and forget those that are gone and have no places."""

    async def places(self, folder_id: str, *, from_uid: int | None = None) -> Sequence[Place]:
        """All of a folder, or those with at least this UID."""

    async def flags(self, folder_id: str) -> Sequence[tuple[int, int, frozenset[str]]]:
        """UIDVALIDITY, UID and flags of all places of a folder."""

    async def places_at(self, keys: Sequence[PlaceKey]) -> Sequence[Place]: ...

    async def places_of(self, ids: Collection[MessageId]) -> Sequence[Place]: ...

    async def listed(
        self,
        span: Span | None,
        folder_ids: Collection[str] | None,
        *,
        after: Place | None = None,
        most: int | None = None,
        header_id: str | None = None,
        flag: FlagFilter | None = None,
    ) -> Sequence[Place]:
        """Places received within the span and in one of these folders, newest first; those that follow upon `after`,
        and no more than `most`; with a `header_id` only those that have it or none; with a `flag` those it lets
        through."""

    async def unknown(self, *, since: int | None = None, sizes: Collection[int] | None = None) -> Sequence[Place]:
        """Places without a message: first seen after a generation, or of one of these sizes."""

    async def following(self, folder_ids: Collection[str], received_s: int, most: int) -> Sequence[Place]:
        """Places of these folders without a message, received then or later, oldest first."""

    async def expect(self, change: FolderChange) -> None:
        """Record only the new places of a change that have no message yet, so that they can be identified before it
        is applied as a whole."""

    async def apply(self, found: Sequence[FolderChange]) -> bool:
        """Record what a look at all folders found, and what follows from it in the journal. False, and nothing
        recorded, where another process has changed one of them meanwhile."""

    async def identify(self, found: Sequence[IdentifiedPlace]) -> None:
        """Record what the bytes at places are. A place that held something else, or is gone, is handled as that."""

    async def count(self) -> int:
        """Messages, as far as they are known apart."""
