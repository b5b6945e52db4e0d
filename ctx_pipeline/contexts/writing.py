"""One `write`: what is known, what was paid for, what failed, and the contexts that come of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache

from ctx_pipeline.chunking.model import Chunk
from ctx_pipeline.claude.client import Reply
from ctx_pipeline.claude.request import Request
from ctx_pipeline.claude.usage import Usage
from ctx_pipeline.contexts.calls import Problem, Wanted
from ctx_pipeline.contexts.earlier import kept_contexts
from ctx_pipeline.contexts.memo import Memo, Paid, drift, members_of, now, place_of, set_digest
from ctx_pipeline.contexts.model import EARLIER_WORDING, EMULATOR, RENEW, Context, Earlier, Progress, Written
from ctx_pipeline.contexts.note import shortened
from ctx_pipeline.contexts.requests import Place
from ctx_pipeline.documents.model import Document

_SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class Room:
    """What a context may hold: tokens, and who counts them."""

    max_tokens: int
    count_tokens: Callable[[Sequence[str]], list[int]]


class Item:
    """A document with what is known of its contexts; `places` are empty when no call is needed."""

    def __init__(
        self, document: Document, chunks: Sequence[Chunk], outline: Sequence[Context], places: Sequence[Place]
    ) -> None:
        self.document, self.chunks, self.outline, self.places = document, chunks, outline, places
        self.members = members_of(chunk.text for chunk in chunks)
        self.usage, self.usd, self.calls = Usage(), Decimal(0), 0


class Writing:
    """Contexts by the keys of their places. Each key becomes known, or has a problem."""

    def __init__(
        self,
        items: Sequence[Item],
        memo: Memo,
        method: str,
        progress: Callable[[Progress], None],
        *,
        renew: bool = False,
    ) -> None:
        self._items, self._memo, self._method, self._progress = items, memo, method, progress
        self._by_doc_id = {item.document.doc_id: item for item in items}
        self._places = {place.key: place for item in items for place in item.places}
        self._chunks = Counter(place.key for item in items for place in item.places)
        self._total = sum(len(item.chunks) for item in items)
        self._open = sum(self._chunks.values())
        self._usage, self._usd = Usage(), Decimal(0)
        self._new: set[str] = set()
        self._older: dict[str, Paid] = {}
        self._problems: dict[str, Problem] = {}
        self._taken_over: dict[str, tuple[Paid, float]] = {}
        found = memo.find(list(self._places))
        self._known: dict[str, Paid] = {key: row for key, row in found.items() if not (renew and row.earlier)}
        self._close(self._known)

    @property
    def known(self) -> set[str]:
        """Keys with a context that is paid for."""
        return self._known.keys() | self._taken_over.keys()

    @property
    def closed(self) -> set[str]:
        """Keys that need no call: known ones, and those that an upgrade of this program leaves as they are."""
        return self.known | self._problems.keys()

    def keep_paid(
        self, earlier: Mapping[str, Earlier], shapes: Collection[str], max_drift: float | None, *, store: bool = True
    ) -> None:
        """Keep what an earlier version of this program paid for, under the keys of today; `store` puts it in the memo.

        `shapes` are those that the settings lead to: a context of another model or wording of the user's is not kept.
        `max_drift` is the drift up to which a chunk of an edited document keeps its context although its view changed;
        None where a changed view asks again.
        """
        was_paid = cache(lambda: self._memo.has_shape(shapes))
        for item in self._items:
            before = earlier.get(item.document.doc_id)
            if before is None or not item.places:
                continue
            rows = self._memo.find([context.memo_key for *_, context in before.chunks if context.memo_key])
            for key, context in kept_contexts(before, item.places, max_drift).items():
                if key in self.closed:
                    continue
                if context is not None and context.memo_key:
                    row = rows.get(context.memo_key)
                    if before.same_settings or (row and row.shape in shapes):
                        self._known[key] = self._kept(item, key, context, row)
                        if store:
                            self._memo.add(self._known[key])
                        self._close([key])
                elif before.same_settings or was_paid():
                    self._problems[key] = (
                        Problem("fallback", context.reason)
                        if context is not None and context.status == "fallback"
                        else Problem("pending", RENEW)
                    )
                    self._close([key])

    def take_over(self, max_drift: float) -> None:
        """For chunks that stayed the same in an edited document, use the context of the version that differs least."""
        for item, key, rows in self._earlier([key for key in self._places if key not in self._known]):
            kept = [
                (drift(item.members, row.members), row)
                for row in rows
                if row.members is not None and row.shape == self._places[key].shape
            ]
            least = min(kept, key=lambda found: found[0], default=None)
            if least is not None and least[0] <= max_drift:
                self._taken_over[key] = (least[1], least[0])
        self._close(self._taken_over)

    def keep_older(self) -> None:
        """For chunks that could not be asked about, keep what an earlier version of the document had."""
        waiting = [key for key, problem in self._problems.items() if problem.status == "pending"]
        for _, key, rows in self._earlier(waiting):
            shape = self._places[key].shape
            if rows:
                self._older[key] = max(rows, key=lambda row: (row.shape == shape, row.written_at))

    def count(self, request: Request, usage: Usage, usd: Decimal) -> None:
        """A response was paid for."""
        item = self._by_doc_id[request.label]
        item.usage, item.usd, item.calls = item.usage + usage, item.usd + usd, item.calls + 1
        self._usage, self._usd = self._usage + usage, self._usd + usd

    def paid(self, wanted: Wanted, text: str, reply: Reply, first: bool) -> None:
        """A context was paid for; of several in one reply, the `first` carries its cost into the memo."""
        place, item = self._places[wanted.key], self._by_doc_id[wanted.doc_id]
        row = Paid(
            memo_key=wanted.key,
            context=text,
            method=EMULATOR if reply.model == EMULATOR else self._method,
            model=place.model,
            doc_id=wanted.doc_id,
            place=_place_digest(place),
            shape=place.shape,
            chunk_set=set_digest(item.members),
            members=item.members,
            written_at=now(),
            usage=reply.usage if first else Usage(),
            usd=reply.usd if first else Decimal(0),
        )
        self._memo.add(row)
        self._known[wanted.key] = row
        self._new.add(wanted.key)
        self._close([wanted.key])

    def _kept(self, item: Item, key: str, context: Context, row: Paid | None) -> Paid:
        place = self._places[key]
        return Paid(
            memo_key=key,
            context=row.context if row else context.text,
            method=context.method,
            model=place.model,
            doc_id=item.document.doc_id,
            place=_place_digest(place),
            shape=place.shape,
            chunk_set=set_digest(item.members),
            members=item.members,
            written_at=row.written_at if row else now(),
            earlier=True,
        )

    def failed(self, wanted: Wanted, problem: Problem) -> None:
        """A context will not come in this write."""
        if wanted.key not in self._known:
            self._problems[wanted.key] = problem
            self._close([wanted.key])

    def written(self, room: Room) -> Iterator[Written]:
        """What `write` gives back for each document, contexts shortened to the room."""
        made = [[self._context(item, at) for at in range(len(item.chunks))] for item in self._items]
        texts = sorted({context.text for own in made for context in own})
        known = self.known
        fitting = dict(zip(texts, shortened(texts, room.max_tokens, room.count_tokens), strict=True))
        for item, own in zip(self._items, made, strict=True):
            yield Written(
                contexts=[replace(context, text=fitting[context.text]) for context in own],
                usage=item.usage,
                usd=item.usd,
                calls=item.calls,
                reused=sum(place.key in known and place.key not in self._new for place in item.places),
            )

    def _context(self, item: Item, at: int) -> Context:
        outline = item.outline[at]
        if not item.places:
            return outline
        key = item.places[at].key
        if key in self._known:
            return _context(self._known[key], outline)
        if key in self._taken_over:
            row, drifted = self._taken_over[key]
            reason = f"reused, written {row.written_at:%Y-%m-%d}, drift {drifted:.2f}"
            return replace(_context(row, outline), reason=reason)
        problem = self._problems[key]
        kept = _context(self._older[key], outline) if key in self._older else outline
        return replace(kept, status=problem.status, reason=problem.reason)

    def _earlier(self, keys: Sequence[str]) -> Iterator[tuple[Item, str, list[Paid]]]:
        """The rows that were written for the same place in earlier versions of the document of each key."""
        wanted = set(keys)
        items = [item for item in self._items if any(place.key in wanted for place in item.places)]
        rows = self._memo.of_documents([item.document.doc_id for item in items]) if items else {}
        for item in items:
            by_place: dict[str, list[Paid]] = {}
            for row in rows.get(item.document.doc_id, []):
                by_place.setdefault(row.place, []).append(row)
            for key in {place.key for place in item.places} & wanted:
                yield item, key, by_place.get(_place_digest(self._places[key]), [])

    def _close(self, keys: Collection[str]) -> None:
        self._open -= sum(self._chunks[key] for key in keys)
        self._progress(Progress(self._total - self._open, self._total, self._usage, self._usd))


def _context(row: Paid, outline: Context) -> Context:
    reason = f"{EARLIER_WORDING}, written {row.written_at:%Y-%m-%d}" if row.earlier else ""
    return Context(row.context, outline.keywords, row.method, reason=reason, memo_key=row.memo_key, earlier=row.earlier)


def _place_digest(place: Place) -> str:
    return place_of(place.view.title, place.chunk) if place.chunk else _SUMMARY
