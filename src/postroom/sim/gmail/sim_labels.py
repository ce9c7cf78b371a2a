"""The labels of a mailbox: the fixed ones of the service and the owner's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from postroom.sim.gmail.api_errors import ApiError, invalid, not_found

_CATEGORIES = ("PERSONAL", "SOCIAL", "PROMOTIONS", "UPDATES", "FORUMS")
SYSTEM = (
    "INBOX",
    "SPAM",
    "TRASH",
    "UNREAD",
    "STARRED",
    "IMPORTANT",
    "SENT",
    "DRAFT",
    "CHAT",
    *(f"CATEGORY_{name}" for name in _CATEGORIES),
)
NOT_BY_HAND = frozenset({"SENT", "DRAFT", "CHAT"})
"""Labels that only the service itself gives and takes."""

_LIST_VISIBILITY = ("labelShow", "labelShowIfUnread", "labelHide")
_MESSAGE_VISIBILITY = ("show", "hide")


@dataclass(frozen=True)
class SimLabel:
    id: str
    name: str
    is_system: bool
    list_visibility: str = "labelShow"
    message_visibility: str = "show"
    color: tuple[str, str] | None = None

    def as_json(self) -> dict[str, object]:
        shown: dict[str, object] = {
            "id": self.id,
            "name": self.name,
            "messageListVisibility": self.message_visibility,
            "labelListVisibility": self.list_visibility,
            "type": "system" if self.is_system else "user",
        }
        if self.color:
            shown["color"] = {"textColor": self.color[0], "backgroundColor": self.color[1]}
        return shown


class SimLabels:
    def __init__(self, user_labels: Mapping[str, str]) -> None:
        self._labels = {name: SimLabel(name, name, is_system=True) for name in SYSTEM}
        self._labels |= {key: SimLabel(key, name, is_system=False) for key, name in user_labels.items()}
        self._next = 1 + max((_number(key) for key in user_labels), default=0)

    def __contains__(self, label_id: object) -> bool:
        return label_id in self._labels

    def all(self) -> list[SimLabel]:
        return list(self._labels.values())

    def get(self, label_id: str) -> SimLabel:
        if label_id not in self._labels:
            raise not_found()
        return self._labels[label_id]

    def find(self, text: str) -> str | None:
        """The id of the label that a search means: by id, or by name in any case with `-` for blanks and slashes."""
        if text in self._labels:
            return text
        wanted = _searchable(text)
        return next((label.id for label in self._labels.values() if _searchable(label.name) == wanted), None)

    def require(self, label_ids: list[str]) -> None:
        for label_id in label_ids:
            if label_id not in self._labels:
                raise invalid(f"Invalid label: {label_id}")

    def create(self, body: Mapping[str, object]) -> SimLabel:
        label = self._changed(SimLabel(f"Label_{self._next}", "", is_system=False), body)
        self._next += 1
        self._labels[label.id] = label
        return label

    def change(self, label_id: str, body: Mapping[str, object], *, whole: bool) -> SimLabel:
        """Update replaces the label, patch changes what the body names."""
        label = self._own(label_id)
        start = SimLabel(label.id, "" if "name" in body else label.name, is_system=False) if whole else label
        self._labels[label_id] = self._changed(start, body)
        return self._labels[label_id]

    def delete(self, label_id: str) -> None:
        del self._labels[self._own(label_id).id]

    def _own(self, label_id: str) -> SimLabel:
        label = self.get(label_id)
        if label.is_system:
            raise invalid(f"Invalid update request: {label_id} is a system label")
        return label

    def _changed(self, label: SimLabel, body: Mapping[str, object]) -> SimLabel:
        name = _text(body, "name", label.name).strip()
        if not name:
            raise invalid("Label name missing or invalid")
        for other in self._labels.values():
            if other.id != label.id and other.name.lower() == name.lower():
                raise ApiError(409, "aborted", "Label name exists or conflicts", status="ABORTED")
        return replace(
            label,
            name=name,
            list_visibility=_choice(body, "labelListVisibility", label.list_visibility, _LIST_VISIBILITY),
            message_visibility=_choice(body, "messageListVisibility", label.message_visibility, _MESSAGE_VISIBILITY),
            color=_color(body, label.color),
        )


def _text(body: Mapping[str, object], key: str, default: str) -> str:
    value = body.get(key, default)
    if not isinstance(value, str):
        raise invalid(f"Invalid value for {key}")
    return value


def _choice(body: Mapping[str, object], key: str, default: str, allowed: tuple[str, ...]) -> str:
    value = _text(body, key, default)
    if value not in allowed:
        raise invalid(f"Invalid value for {key}: {value[:40]}")
    return value


def _color(body: Mapping[str, object], default: tuple[str, str] | None) -> tuple[str, str] | None:
    color = body.get("color")
    if not isinstance(color, dict):
        return default
    return _text(color, "textColor", "#000000"), _text(color, "backgroundColor", "#ffffff")


def _searchable(name: str) -> str:
    return name.lower().replace(" ", "-").replace("/", "-")


def _number(label_id: str) -> int:
    digits = label_id.rpartition("_")[2]
    return int(digits) if digits.isascii() and digits.isdigit() else 0
