"""One document on its way through the stages."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from ctx_pipeline.chunking.model import Chunk
from ctx_pipeline.claude.usage import Usage
from ctx_pipeline.contexts.model import NO_USAGE, Context, Written
from ctx_pipeline.documents.model import Document
from ctx_pipeline.documents.source import FoundFile
from ctx_pipeline.errors import CtxError, FatalError
from ctx_pipeline.index.ledger import Failure, Met
from ctx_pipeline.index.versions import Stage


@dataclass(frozen=True, slots=True)
class Task:
    """What to do for one document."""

    doc_id: str
    stages: frozenset[Stage]
    file: FoundFile | None = None
    edited: bool = True
    """Whether the live search table needs the rows too while another one is being built beside it."""


@dataclass(slots=True)
class Outcome:
    """One document on its way through the stages, and what came of it."""

    task: Task
    marked_before: str = ""
    """The mark of an earlier run that the document's ledger row carried."""
    met: Met | None = None
    """What was read of the file, also when it could not be parsed."""
    document: Document | None = None
    chunks: list[Chunk] = field(default_factory=list)
    contexts: list[Context] = field(default_factory=list)
    contexts_reused: int = 0
    """Contexts written now from what was paid for before."""
    usage: Usage = NO_USAGE
    """Tokens of the calls that were made for the document's contexts now; `usd` is their cost."""
    usd: Decimal = Decimal(0)
    calls: int = 0
    done: list[Stage] = field(default_factory=list)
    versions: dict[Stage, str] = field(default_factory=dict)
    indexed: dict[str, str] = field(default_factory=dict)
    embedded: int = 0
    reused: int = 0
    truncated: int = 0
    keeps_vectors: bool = False
    """Whether an upgrade of this program alone asks for other vectors, which then wait for the user's word."""
    earlier_vectors: int = 0
    """Chunks whose vector is the one that an earlier version of this program asked for."""
    table_rows: int = 0
    """Rows of the search table after the document's were written."""
    error: Exception | None = None
    failure: Failure | None = None

    @property
    def doc_id(self) -> str:
        """The document."""
        return self.task.doc_id

    @property
    def defect(self) -> str:
        """The traceback of an error that nobody foresaw, for the log; empty for one with a message."""
        if self.error is None or isinstance(self.error, CtxError):
            return ""
        return "".join(traceback.format_exception(self.error))

    def take(self, result: Written | Exception) -> None:
        """Keep what the contextualizer made of the document."""
        if isinstance(result, Exception):
            self.error = result
        else:
            self.contexts, self.contexts_reused = result.contexts, result.reused
            self.usage, self.usd, self.calls = result.usage, result.usd, result.calls


class isolated:  # noqa: N801 (used as `with isolated(...)`)
    """Keeps one document's error with that document, a defect of this program too: the others go on. Fatal errors
    pass."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if isinstance(error, Exception) and not isinstance(error, FatalError):
            self._outcome.error = error
            return True
        return False
