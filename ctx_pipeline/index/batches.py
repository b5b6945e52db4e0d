"""Batches: documents that go through the stages together, with one commit a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ctx_pipeline.index.ledger import Ledger
from ctx_pipeline.index.outcome import Task
from ctx_pipeline.index.plan import Work
from ctx_pipeline.index.versions import Stage

BATCH_DOCUMENTS = 256
BATCH_CHUNKS = 512
BATCH_BYTES = 16_000_000
PAID_BATCHES = 8
"""How many times larger a batch is when its contexts are paid for, or more where that is less than PAID_ROUNDS."""
PAID_ROUNDS = 32
"""Calls of a batch for each that may be in flight: the pool runs empty at the end of a batch, for about one call's
time. What a kill interrupts is in the memo, so that a large batch costs no more than a small one."""
BYTES_PER_CHUNK = 1_000
"""A low guess, for documents that were never cut."""


def tasks_of(work: Iterable[Work]) -> list[Task]:
    """Each document from its first owed stage to the last one."""
    return [
        Task(item.doc_id, frozenset(stage for stage in Stage if stage >= item.stage), item.file, item.edited)
        for item in work
    ]


def batches(tasks: Iterable[Task], ledger: Ledger, calls_at_once: int = 0) -> Iterator[list[Task]]:
    """Cut the tasks into batches by documents, chunks (as known or guessed) and bytes.

    `calls_at_once` is how many calls for contexts may be in flight; 0 when they cost none.
    """
    times = max(PAID_BATCHES, -(-PAID_ROUNDS * calls_at_once // BATCH_CHUNKS)) if calls_at_once else 1
    batch: list[Task] = []
    chunks = size = 0
    for task in tasks:
        row = ledger.rows.get(task.doc_id)
        own_size = task.file.size if task.file else row.size if row else 0
        own_chunks = max(row.chunks if row else 0, own_size // BYTES_PER_CHUNK if Stage.CHUNKS in task.stages else 0)
        full = (
            len(batch) >= times * BATCH_DOCUMENTS
            or chunks + own_chunks > times * BATCH_CHUNKS
            or size + own_size > min(times, PAID_BATCHES) * BATCH_BYTES
        )
        if batch and full:
            yield batch
            batch, chunks, size = [], 0, 0
        batch.append(task)
        chunks += own_chunks
        size += own_size
    if batch:
        yield batch
