"""Contexts written by a model: paid for once, found again in the memo, and never missing without a reason."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ctx_pipeline.chunking.model import Chunk
from ctx_pipeline.claude.client import run_sync
from ctx_pipeline.claude.outcome import FatalCallError, Reason
from ctx_pipeline.contexts.calls import UNAVAILABLE, Asked, Calls, pending
from ctx_pipeline.contexts.memo import FLUSH_S, Memo
from ctx_pipeline.contexts.model import NOTHING_EARLIER, Earlier, Progress, Written
from ctx_pipeline.contexts.outline import OutlineContextualizer
from ctx_pipeline.contexts.requests import Requests
from ctx_pipeline.contexts.service import Service
from ctx_pipeline.contexts.writing import Item, Room, Writing
from ctx_pipeline.documents.model import Document


@dataclass(frozen=True, slots=True)
class Reuse:
    """Whether a context is kept although its view was edited, and up to which drift of the document."""

    by_chunk: bool
    max_drift: float


class ModelContextualizer:
    """Contexts by a model behind a `Service`, each asked for and paid for once.

    What the memo holds is used again. The rest is asked for through one pool that all documents of a `write` share. A
    context that the model will not write (refused, cut, empty) is that of the outline, `fallback`, with the reason.
    What could not be asked is `pending`: `no_key`, `auth`, `budget` after an error that holds for every call, after
    which this object sends none any more; `unavailable` when the service gave no answer in spite of all attempts, which
    is not the chunk's fault and is tried again by the next refresh. A pending chunk keeps the context of an earlier
    version of its document where there is one, else it has that of the outline.

    Documents of a single chunk need no call and get outline contexts. The budget is that of the object. The caller
    holds the storage's lock.
    """

    def __init__(
        self,
        method: str,
        requests: Requests,
        service: Service,
        outline: OutlineContextualizer,
        room: Room,
        memo: Memo,
        reuse: Reuse,
        key_variable: str | None,
    ) -> None:
        """`key_variable` names the environment variable without which the service cannot be used, if there is one."""
        self.method = method
        self.fingerprint = f"{method}/{requests.identity}/{outline.fingerprint}"
        self.requests = requests
        self.warnings: list[str] = []
        self._service, self._outline, self._room, self._memo, self._reuse = service, outline, room, memo, reuse
        self._key_variable = key_variable

    def can_take_up(self) -> frozenset[str]:
        """See Contextualizer. Another refresh has another budget."""
        has_key = self._key_variable is None or bool(os.environ.get(self._key_variable, "").strip())
        return frozenset({"budget", UNAVAILABLE, *(("no_key", "auth") if has_key else ())})

    def write(
        self,
        documents: Sequence[tuple[Document, Sequence[Chunk]]],
        progress: Callable[[Progress], None] = lambda progress: None,
        earlier: Mapping[str, Earlier] = NOTHING_EARLIER,
        *,
        renew: bool = False,
    ) -> list[Written | Exception]:
        """See Contextualizer. No document fails."""
        items = [
            Item(document, chunks, outlined, self.requests.places(document, chunks))
            for (document, chunks), outlined in zip(documents, self._outline.contexts(documents), strict=True)
        ]
        writing = Writing(items, self._memo, self.method, progress, renew=renew)
        if earlier and not renew:
            writing.keep_paid(earlier, self.requests.shapes, self._reuse.max_drift if self._reuse.by_chunk else None)
            self._memo.flush()
        if self._reuse.by_chunk:
            writing.take_over(self._reuse.max_drift)
        asked = self.requests.asked(((item.document, item.places) for item in items), writing.closed)
        if asked:
            run_sync(self._ask(asked, writing))
            writing.keep_older()
        return list(writing.written(self._room))

    async def _ask(self, asked: Sequence[Asked], writing: Writing) -> None:
        limiter, requests = self._service.limiter, self.requests
        calls = Calls(
            requests.model, requests.max_tokens, requests.chunks_per_call, limiter, writing.paid, writing.failed
        )
        flushing = asyncio.create_task(self._flush(calls))
        try:
            async with self._service.open(writing.count) as ask:
                await calls.run(ask, asked)
        except FatalCallError as error:
            calls.stop(error)
            for view in asked:
                for wanted in view.wanted:
                    writing.failed(wanted, pending(error))
        finally:
            flushing.cancel()
            with suppress(asyncio.CancelledError):
                await flushing
            self._memo.flush()
        if limiter.stopped is not None:
            line = f"contexts that are not paid for yet stay pending: {limiter.stopped}"
            self.warnings += [line] if line not in self.warnings else []

    async def _flush(self, calls: Calls) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            try:
                await asyncio.to_thread(self._memo.flush)
            except Exception as error:
                # Nothing more is paid for that cannot be kept; the last flush raises the error.
                calls.stop(FatalCallError(f"the memo cannot be written: {error}", Reason.SERVER))
                return
