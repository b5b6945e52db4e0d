"""Files of a source that no include pattern names: told by extension, and some of them by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from ctx_pipeline.errors import counted

NAMED = 100
"""Files kept by name; all are counted."""
TOLD_EXTENSIONS = 8
"""Extensions in a line of words; `to_json` has up to NAMED."""
LONGEST_EXTENSION = 12
"""Characters: what follows the last dot of a longer name is a word of it."""


@dataclass(slots=True)
class NotIndexed:
    """How many files no pattern names, by extension in lower case; empty for names without one."""

    by_extension: Counter[str] = field(default_factory=Counter)
    names: list[str] = field(default_factory=list)
    """The first NAMED, as the doc_ids that they would have."""

    @property
    def files(self) -> int:
        """All of them."""
        return self.by_extension.total()

    def add(self, doc_id: str) -> None:
        """Count one file."""
        extension = PurePosixPath(doc_id).suffix.lower()
        self.by_extension[extension if len(extension) <= LONGEST_EXTENSION else ""] += 1
        if len(self.names) < NAMED:
            self.names.append(doc_id)

    def words(self) -> str:
        """`18 files: 3 .pdf, 2 .docx, 1 without extension`; empty for no files."""
        return words(self.files, self.by_extension)

    def to_json(self) -> dict[str, Any]:
        """`files`, `by_extension` (the most frequent NAMED; `""` for none) and `names` (the first NAMED)."""
        ordered = _ordered(self.by_extension)[:NAMED]
        return {"files": self.files, "by_extension": dict(ordered), "names": sorted(self.names)}


def words(files: int, by_extension: Mapping[str, int]) -> str:
    """What `NotIndexed.words` gives, from the figures of `to_json`."""
    if not files:
        return ""
    ordered = _ordered(by_extension)[:TOLD_EXTENSIONS]
    told = [f"{count} {extension or 'without extension'}" for extension, count in ordered]
    rest = files - sum(count for _, count in ordered)
    if rest:
        told.append(f"{rest} others")
    return f"{counted(files, 'file')}: {', '.join(told)}"


def merged(found: Iterable[NotIndexed]) -> NotIndexed:
    """Several sources as one."""
    every = NotIndexed()
    for part in found:
        every.by_extension.update(part.by_extension)
        every.names += part.names[: NAMED - len(every.names)]
    return every


def _ordered(by_extension: Mapping[str, int]) -> list[tuple[str, int]]:
    """The most frequent first, then by name: the same words for the same files."""
    return sorted(by_extension.items(), key=lambda entry: (-entry[1], entry[0]))
