"""A contextualizer that a test tells what becomes of each chunk, at a price, with a memo as a paid one has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal

import pytest

from ctx_pipeline.chunking.model import Chunk
from ctx_pipeline.claude.usage import Usage
from ctx_pipeline.contexts.model import NOTHING_EARLIER, Context, Earlier, Progress, Status, Written
from ctx_pipeline.documents.model import Document

CALL = Usage(input=10, cache_write_5m=100, cache_read=300, output=5)
CALL_USD = Decimal("0.001")


class ScriptedContextualizer:
    """Writes every context for 0.001 USD, except where `outcomes` (words of a chunk: status, reason) say otherwise."""

    method = "claude"
    fingerprint = "scripted"

    def __init__(self) -> None:
        self.outcomes: dict[str, tuple[Status, str]] = {}
        self.taken_up: set[str] = set()
        self.asked: list[str] = []
        self.batches: list[int] = []
        self.memo: set[str] = set()
        self.warnings: list[str] = []

    def can_take_up(self) -> frozenset[str]:
        return frozenset(self.taken_up)

    def write(
        self,
        documents: Sequence[tuple[Document, Sequence[Chunk]]],
        progress: Callable[[Progress], None] = lambda progress: None,
        earlier: Mapping[str, Earlier] = NOTHING_EARLIER,
        *,
        renew: bool = False,
    ) -> list[Written | Exception]:
        total = sum(len(chunks) for _, chunks in documents)
        self.batches.append(total)
        told, results = Progress(total=total), list[Written | Exception]()
        for _, chunks in documents:
            contexts, calls, reused = [], 0, 0
            for chunk in chunks:
                status, reason = next(
                    (outcome for words, outcome in self.outcomes.items() if words in chunk.text), ("written", "")
                )
                if status == "written":
                    reused += chunk.text in self.memo
                    calls += chunk.text not in self.memo
                    self.asked += [chunk.text] * (chunk.text not in self.memo)
                    self.memo.add(chunk.text)
                text = f"About {chunk.heading_path[-1]}." if status == "written" else "Outline."
                contexts.append(Context(text, "", self.method, status, reason, memo_key=chunk.text[:9]))
            usage = sum([CALL] * calls, Usage())
            told += Progress(done=len(chunks), usage=usage, usd=calls * CALL_USD)
            progress(told)
            results.append(Written(contexts, usage, calls * CALL_USD, calls, reused))
        return results


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> ScriptedContextualizer:
    """What every pipeline of this process writes contexts with."""
    contextualizer = ScriptedContextualizer()
    monkeypatch.setattr("ctx_pipeline.refresh.open_contextualizer", lambda *arguments: contextualizer)
    return contextualizer
