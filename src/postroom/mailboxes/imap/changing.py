"""Changes labels of messages by changing their flags and places. The plan is pure; `PlanRunner` carries it out.

A label is a folder, so adding one copies the message there, and removing one removes that copy. A message is never
removed with its last place: one that loses its last label goes to the archive folder, as Gmail's archived mail has no
label either. Every plan can be repeated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import unquote

from postroom.domain.errors import BadInput
from postroom.mailboxes.errors import CallRefused, LabelGone, MailboxUnavailable
from postroom.mailboxes.imap.connection import ImapConnection
from postroom.mailboxes.imap.folders import date_text, open_folder
from postroom.mailboxes.imap.places import (
    FLAGGED,
    GMAIL_LABEL,
    IMPORTANT,
    KEYWORD,
    ROLE_LABELS,
    SEEN,
    STARRED,
    UNREAD,
    FolderRole,
    Folders,
    FolderState,
    Place,
    PlaceKey,
    archive_of,
    digest,
    gmail_label,
)
from postroom.mailboxes.imap.reading import Connect
from postroom.mailboxes.imap.wire import Literal, ResponseCode, UidSet, WireError, encode_folder, flag_list, quoted
from postroom.mailboxes.protocol import LabelId, MailboxChange, MessageId, Move, NewMessage

_SHOWN_FLAGS = {SEEN: "\\Seen", FLAGGED: "\\Flagged"}
FolderRef = str | FolderRole
"""A folder's id, or the role of one that may have to be made first."""


class StepKind(StrEnum):
    """In the order in which they are carried out: flags go with a message when it moves, and nothing is expunged
    before its copies are there."""

    SET = "set"
    CLEAR = "clear"
    COPY = "copy"
    MOVE = "move"
    EXPUNGE = "expunge"


@dataclass(frozen=True, slots=True)
class Step:
    kind: StepKind
    place: Place
    target: FolderRef = ""
    """A folder, or the flag to set or clear."""


def plan_change(places: Sequence[Place], folders: Folders, change: MailboxChange) -> list[Step]:
    """What to do about one message that has these places."""
    match change.move:
        case Move.DELETE:
            return [Step(StepKind.EXPUNGE, place) for place in places]
        case Move.TRASH:
            lying = [place for place in places if _role(place, folders) is FolderRole.TRASH]
            return _gather(places, folders, FolderRole.TRASH, lying)
        case Move.RESTORE:
            lying = [place for place in places if _role(place, folders) is FolderRole.TRASH]
            others = [place for place in places if place not in lying]
            return _gather(lying, folders, FolderRole.ARCHIVE, others)
        case None:
            return [*_flag_steps(places, change), *_folder_steps(places, folders, change)]


def _gather(places: Sequence[Place], folders: Folders, target: FolderRole, there: Sequence[Place]) -> list[Step]:
    """Bring a message to one folder: one of its places moves, unless it has one there, and the others go. One that lies
    in the view of all mail alone is copied."""
    leaving = [place for place in places if place not in there and _role(place, folders) is not FolderRole.ALL]
    if not leaving:
        return [] if there else [Step(StepKind.COPY, place, target) for place in places[:1]]
    steps = [] if there else [Step(StepKind.MOVE, leaving[0], target)]
    return [*steps, *(Step(StepKind.EXPUNGE, place) for place in leaving[0 if there else 1 :])]


def _flag_steps(places: Sequence[Place], change: MailboxChange) -> list[Step]:
    wanted: dict[str, bool] = {}
    for labels, is_added in ((change.remove, False), (change.add, True)):
        for label in labels:
            if label == UNREAD:
                wanted[SEEN] = not is_added
            elif label == STARRED:
                wanted[FLAGGED] = is_added
            elif label.startswith(KEYWORD):
                wanted[label.removeprefix(KEYWORD)] = is_added
            elif _is_of_gmail(label):
                wanted[gmail_label("\\Important") if label == IMPORTANT else label] = is_added
    return [
        Step(StepKind.SET if is_set else StepKind.CLEAR, place, flag)
        for flag, is_set in sorted(wanted.items())
        for place in places
        if (flag in place.flags) != is_set
    ]


def _folder_steps(places: Sequence[Place], folders: Folders, change: MailboxChange) -> list[Step]:
    have = {folders[place.folder_id].label_id for place in places}
    targets = [_folder_of(label, folders) for label in sorted(change.add) if _is_folder(label) and label not in have]
    remove = change.remove - change.add
    leaving = [place for place in places if folders[place.folder_id].label_id in remove]
    staying = [place for place in places if place not in leaving]
    sources = leaving + [place for place in staying if _role(place, folders) is FolderRole.ARCHIVE and targets]
    steps: list[Step] = []
    for target in targets[1:]:
        steps.append(Step(StepKind.COPY, places[0], target))
    if targets:
        first = sources.pop(0) if sources else None
        steps.append(
            Step(StepKind.COPY, places[0], targets[0]) if first is None else Step(StepKind.MOVE, first, targets[0])
        )
    elif leaving and not staying:
        steps.append(Step(StepKind.MOVE, sources.pop(0), FolderRole.ARCHIVE))
    return [*steps, *(Step(StepKind.EXPUNGE, place) for place in sources)]


def _is_folder(label: LabelId) -> bool:
    return label not in (UNREAD, STARRED) and not label.startswith(KEYWORD) and not _is_of_gmail(label)


def _is_of_gmail(label: LabelId) -> bool:
    """A label that only Gmail's own server knows, and that is no folder there."""
    return label == IMPORTANT or label.startswith(GMAIL_LABEL)


def _folder_of(label: LabelId, folders: Folders) -> FolderRef:
    role = next((role for role, name in ROLE_LABELS.items() if name == label), None)
    if role is not None:
        return next((folder.id for folder in folders.values() if folder.role is role), role)
    if label not in folders:
        raise LabelGone(f"The mailbox has no folder with the id {label} (any more).")
    return label


def _role(place: Place, folders: Folders) -> FolderRole:
    return folders[place.folder_id].role


def folder_labels(labels: frozenset[LabelId], folders: Folders) -> list[FolderRef]:
    """The folders that a message with these labels lies in; the archive, where none of them is one."""
    archive = archive_of(folders)
    return [_folder_of(each, folders) for each in sorted(labels) if _is_folder(each)] or [
        FolderRole.ARCHIVE if archive is None else archive.id
    ]


def flags_for(labels: frozenset[LabelId]) -> list[str]:
    flags = [each.removeprefix(KEYWORD) for each in labels if each.startswith(KEYWORD)]
    flags += [] if UNREAD in labels else ["\\Seen"]
    flags += ["\\Flagged"] if STARRED in labels else []
    return [*flags, "\\Draft"] if "DRAFT" in labels else flags


@dataclass(frozen=True, slots=True, eq=False)
class Uploaded:
    """A message that the server has taken."""

    folder: FolderState
    uid: int | None
    """None where the server does not say which one it gave."""
    digest: MessageId
    """Of what was sent."""
    more: frozenset[LabelId]
    """Of the further folders where it shall lie."""

    def key(self, folders: Folders) -> PlaceKey | None:
        now = folders.get(self.folder.id, self.folder)
        return None if self.uid is None else (now.id, now.uidvalidity, self.uid)


async def append_message(
    connection: ImapConnection, message: NewMessage, folder: FolderState, more: frozenset[LabelId]
) -> Uploaded:
    """To one folder; `more` is kept for later."""
    date = [] if message.received is None else [date_text(message.received)]
    flags = flag_list(flags_for(message.label_ids))
    answer = await connection.command(b"APPEND", quoted(folder.wire), flags, *date, Literal(message.raw), changes=True)
    code = answer.codes().get("APPENDUID")
    return Uploaded(folder, None if code is None else code.number(1), digest(message.raw), more)


CopiedPlaces = dict[PlaceKey, MessageId]
"""What the server says became of copied messages: at this place lies this message."""


class PlanRunner:
    """`make_folder` gives the folder of a role, and makes it where the mailbox has none."""

    def __init__(
        self, connect: Connect, folders: Folders, make_folder: Callable[[FolderRole], Awaitable[FolderState]]
    ) -> None:
        self._connect = connect
        self._folders = dict(folders)
        self._make_folder = make_folder
        self.copied: CopiedPlaces = {}

    async def run(self, steps: Sequence[Step]) -> None:
        """Steps of a kind with the same folders are one command."""
        grouped: dict[tuple[StepKind, str, FolderRef], list[Place]] = defaultdict(list)
        for step in steps:
            grouped[step.kind, step.place.folder_id, step.target].append(step.place)
        for kind in StepKind:
            for (each, folder_id, target), places in grouped.items():
                if each is kind:
                    await self._do(kind, self._folders[folder_id], target, places)

    async def _do(self, kind: StepKind, folder: FolderState, target: FolderRef, places: Sequence[Place]) -> None:
        goal = await self._goal(kind, target)
        async with self._connect(folder.wire) as connection:
            box = await open_folder(connection, folder.wire, writable=True)
            if any(place.uidvalidity != box.uidvalidity for place in places):
                raise MailboxUnavailable(f"The folder {folder.label_name!r} was numbered anew meanwhile")
            uids = str(UidSet.of(place.uid for place in places)).encode("ascii")
            match kind:
                case StepKind.SET | StepKind.CLEAR:
                    sign = b"+" if kind is StepKind.SET else b"-"
                    await connection.command(b"UID STORE", uids, sign + _stored(str(target)), changes=True)
                case StepKind.EXPUNGE:
                    await self._expunge(connection, uids)
                case StepKind.COPY | StepKind.MOVE:
                    await self._carry(connection, kind, uids, goal or folder, places)

    async def _goal(self, kind: StepKind, target: FolderRef) -> FolderState | None:
        if kind not in (StepKind.COPY, StepKind.MOVE):
            return None
        if isinstance(target, FolderRole):
            same = next((each for each in self._folders.values() if each.role is target), None)
            if target is FolderRole.ARCHIVE:
                same = archive_of(self._folders)
            made = same or await self._make_folder(target)
            self._folders[made.id] = made
            return made
        return self._folders[target]

    async def _carry(
        self,
        connection: ImapConnection,
        kind: StepKind,
        uids: bytes,
        goal: FolderState,
        places: Sequence[Place],
    ) -> None:
        is_move = kind is StepKind.MOVE and "MOVE" in connection.capabilities
        if kind is StepKind.MOVE and not is_move:
            _require_uidplus(connection)
        verb = b"UID MOVE" if is_move else b"UID COPY"
        answer = await connection.command(verb, uids, quoted(goal.wire), changes=True)
        code = answer.codes().get("COPYUID")
        if code is not None and len(code.values) == 3:
            self._learn(goal, code, places)
        if kind is StepKind.MOVE and not is_move:
            await self._expunge(connection, uids)

    def _learn(self, goal: FolderState, code: ResponseCode, places: Sequence[Place]) -> None:
        """Where the copies lie. An answer that does not add up is ignored: the copies' bytes are read then."""
        most = len(places)
        try:
            old, new = (UidSet.parse(each).in_order(most) for each in code.values[1:])
        except WireError:
            return
        messages = {place.uid: place.message_id for place in places}
        if sorted(messages) != old or len(new) != len(old):
            return
        for source, target in zip(old, new, strict=True):
            message_id = messages[source]
            if message_id is not None:
                self.copied[goal.id, code.number() or 0, target] = message_id

    async def _expunge(self, connection: ImapConnection, uids: bytes) -> None:
        _require_uidplus(connection)
        await connection.command(b"UID STORE", uids, rb"+FLAGS.SILENT (\Deleted)", changes=True)
        await connection.command(b"UID EXPUNGE", uids, changes=True)


def _stored(flag: str) -> bytes:
    """What STORE sets or clears."""
    if flag.startswith(GMAIL_LABEL):
        name = encode_folder(unquote(flag.removeprefix(GMAIL_LABEL)))
        return b"X-GM-LABELS.SILENT (" + quoted(name) + b")"
    return b"FLAGS.SILENT " + flag_list([_SHOWN_FLAGS.get(flag, flag)])


def _require_uidplus(connection: ImapConnection) -> None:
    if "UIDPLUS" not in connection.capabilities:
        raise CallRefused(
            f"{connection.address.host} cannot remove one message by itself (it lacks UIDPLUS). Nothing was removed.",
            status=0,
            reason="uidplus",
        )


def new_wire_name(name: str, folders: Folders) -> str:
    """A new folder's name on the wire; below the inbox, where the server wants all folders there. What separates
    folders at this server has no place within a name."""
    delimiter = next((folder.delimiter for folder in folders.values() if folder.delimiter), "/")
    if not name.strip("/ ") or not name.isprintable() or any(letter in name for letter in "*%"):
        raise BadInput("label", f"{name!r} cannot be the name of a folder")
    others = [folder.wire for folder in folders.values() if folder.role is not FolderRole.INBOX]
    below = f"INBOX{delimiter}" if others and all(wire.startswith(f"INBOX{delimiter}") for wire in others) else ""
    parts = [part if delimiter == "/" else part.replace(delimiter, "-") for part in name.split("/") if part]
    return below + encode_folder(delimiter.join(parts))
