"""What a removal certificate says (SY-10): before a message is removed at its source, the proof that it is here is
written down, and afterwards what became of the removal.

A certificate says which bytes were read back, where, and below which watermark. One without an outcome was interrupted:
only the source can say whether the message is still there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from postroom.archive.messages import Provenance

LEDGER_COLUMNS = (
    "certificate, batch, action, label, gmail_id, key, sha256, size, shard, row_id, provenance, watermark, "
    "certified_at, result, detail, result_at"
)


class RemovalAction(StrEnum):
    LABEL = "label"
    TRASH = "trash"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Removal:
    """What is done to messages at the source; `label` names the one that is taken away, and is empty otherwise."""

    action: RemovalAction
    label: str = ""

    def __str__(self) -> str:
        match self.action:
            case RemovalAction.LABEL:
                return f"remove the label {self.label}"
            case RemovalAction.TRASH:
                return "move to the trash"
            case RemovalAction.DELETE:
                return "delete for ever"


class RemovalResult(StrEnum):
    INTENDED = "intended"
    REMOVED = "removed"
    GONE = "gone"
    """It was no longer there to be removed."""
    LEFT = "left"
    """It was not removed after all; the detail says why."""


@dataclass(frozen=True, slots=True)
class ArchiveProof:
    """That a message is here: its bytes as they were read back, and where."""

    gmail_id: str
    key: str
    sha256: str
    size: int
    shard: str
    row_id: int
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class Certificate:
    number: int
    batch: str
    removal: Removal
    proof: ArchiveProof
    watermark: int
    certified_at: datetime
    result: RemovalResult
    detail: str
    result_at: datetime


def certificate_of(row: Sequence[Any], moment: Callable[[Any], datetime]) -> Certificate:
    """A row of the ledger, whose columns stand in one order wherever it is kept; `moment` reads how it writes times."""
    number, batch, action, label, gmail_id, key, sha256, size, shard, row_id, provenance, watermark = row[:12]
    certified_at, result, detail, result_at = row[12:]
    return Certificate(
        number=number,
        batch=batch,
        removal=Removal(RemovalAction(action), label),
        proof=ArchiveProof(gmail_id, key, sha256, size, shard, row_id, Provenance(provenance)),
        watermark=watermark,
        certified_at=moment(certified_at),
        result=RemovalResult(result),
        detail=detail,
        result_at=moment(result_at),
    )
