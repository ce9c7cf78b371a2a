"""What became of the labels themselves since they were last seen: renamed, deleted, or names that changed hands. Pure.

Mail at the source names labels by id, the archive by name; so a new name must reach the mail that has the old one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LabelChanges:
    renamed: tuple[tuple[str, str], ...] = ()
    """Old and new name, neither of them ever another label's: done again or in any order, it comes to the same."""
    dropped: tuple[str, ...] = ()
    """Names that no label has any more."""
    mixed: tuple[tuple[str, str], ...] = ()
    """Id and name of labels of which the archive's names tell nothing certain: their members have to be asked for."""

    def __bool__(self) -> bool:
        return bool(self.renamed or self.dropped or self.mixed)


def changes_between(before: Mapping[str, frozenset[str]], now: Mapping[str, str]) -> LabelChanges:
    """From the names that each label id may have in the archive to the one that it has at the source.

    An id with several names was being renamed when somebody died: which mail has which name is not known.
    """
    old_names = frozenset[str]().union(*before.values())
    new_names = frozenset(now.values())
    changed = {each: name for each, name in now.items() if before.get(each) != frozenset({name})}
    plain = {
        each: (min(before[each]), name)
        for each, name in changed.items()
        if each in before and len(before[each]) == 1 and name not in old_names and before[each].isdisjoint(new_names)
    }
    mixed = [
        (each, name) for each, name in changed.items() if each not in plain and (each in before or name in old_names)
    ]
    dropped = old_names - new_names - {old for old, _ in plain.values()}
    return LabelChanges(tuple(plain.values()), tuple(sorted(dropped)), tuple(mixed))
