"""The calls that write missing contexts: what is asked together, what becomes of each answer, what stops them all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ctx_pipeline.chunking.model import Chunk
from ctx_pipeline.claude.adaptive import AdaptiveLimiter
from ctx_pipeline.claude.client import Reply
from ctx_pipeline.claude.outcome import FatalCallError, PermanentCallError, Reason, TransientCallError
from ctx_pipeline.claude.request import Block, Request
from ctx_pipeline.contexts.model import Status
from ctx_pipeline.contexts.note import clean
from ctx_pipeline.contexts.prompt import GROUP_SCHEMA, Prompt
from ctx_pipeline.contexts.service import Ask
from ctx_pipeline.contexts.view import View

MISSING_ROUNDS = 3
"""How often chunks that a grouped answer leaves out are asked about."""
OUTAGE_CALLS = 5
"""Calls in a row that got no answer in spite of all their attempts: the service is down, and others would wait too."""
REFUSED_CALLS = 10
"""Requests refused as such before any was answered: the settings or the endpoint are at fault, not the chunks."""
JSON_TOKENS = 24
"""Of one entry of a grouped answer, beside the context."""

UNAVAILABLE = "unavailable"
_PENDING = {
    Reason.NO_KEY: "no_key",
    Reason.AUTH: "auth",
    Reason.BUDGET: "budget",
    Reason.SPEND_LIMIT: "budget",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """A context that nobody has paid for yet."""

    key: str
    doc_id: str
    chunk: Chunk | None
    """None for a summary of the view."""
    number: int = 0
    """Of the chunk in its view, from 1."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A view, with all that is wanted of it."""

    view: View
    prompt: Prompt
    wanted: tuple[Wanted, ...]
    marked: bool
    """Whether the view goes to the cache: it is long enough, and asked about more than once."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a context was not written: `fallback`, or `pending` with one of the reasons for that."""

    status: Status
    reason: str


@dataclass(frozen=True, slots=True)
class _Sheet:
    """What the requests about a view share."""

    number: int
    view: Block
    prompt: Prompt
    grouped: bool


@dataclass(frozen=True)
class _Item:
    chunk: int
    context: str


@dataclass(frozen=True)
class _Group:
    contexts: list[_Item]


class Calls:
    """All calls of one `write`, through one pool. `paid` is told of each context, with the reply that holds it and
    whether it is the first one of that reply; `failed` of each that will not come. Each key gets one of both."""

    def __init__(
        self,
        model: str,
        max_tokens: int,
        chunks_per_call: int,
        limiter: AdaptiveLimiter,
        paid: Callable[[Wanted, str, Reply, bool], None],
        failed: Callable[[Wanted, Problem], None],
    ) -> None:
        self._model, self._max_tokens, self._chunks_per_call = model, max_tokens, chunks_per_call
        self._limiter, self._paid, self._failed = limiter, paid, failed
        self._unanswered, self._answered = 0, False
        self._refused: list[tuple[Sequence[Wanted], Problem]] = []

    async def run(self, ask: Ask, views: Sequence[Asked]) -> None:
        """Ask for everything; returns when each context is paid for or has failed. Raises nothing but defects."""
        self._limiter.reset()
        tasks = []
        for number, asked in enumerate(views):
            grouped = is_grouped(asked, self._chunks_per_call)
            # One object for all requests: they wait in memory together.
            view = Block(view_text(asked, grouped), "5m" if asked.marked else None)
            sheet = _Sheet(number, view, asked.prompt, grouped)
            tasks += [self._group(ask, sheet, group) for group in groups(asked.wanted, self._chunks_per_call)]
        # All are waited for, also when one shows a defect: the others are paid for.
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        at_fault = self._answered or len(self._refused) < REFUSED_CALLS
        for group, problem in self._refused:
            self._fail(group, problem if at_fault else Problem("pending", UNAVAILABLE))
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _group(self, ask: Ask, sheet: _Sheet, group: Sequence[Wanted], rounds: int = 1) -> None:
        try:
            reply = await ask(self._request(sheet, group))
            notes = _notes(reply, sheet, group)
        except PermanentCallError as error:
            if error.reason is Reason.BAD_REQUEST and len(group) == 1 and not self._answered:
                self._refused.append((group, Problem("fallback", f"{error.reason}: {error}")))
                if len(self._refused) == REFUSED_CALLS:
                    self.stop(FatalCallError(str(error), error.reason))
            elif error.reason is Reason.NOT_FOUND:
                self.stop(FatalCallError(str(error), error.reason))
                self._fail(group, Problem("pending", UNAVAILABLE))
            elif len(group) > 1:
                # One chunk may be why all were refused or cut.
                middle = len(group) // 2
                halves = (group[:middle], group[middle:])
                await asyncio.gather(*(self._group(ask, sheet, half, rounds) for half in halves))
            else:
                self._unanswered = 0
                self._fail(group, Problem("fallback", f"{error.reason}: {error}"))
        except TransientCallError as error:
            self._unanswered += 1
            self._fail(group, Problem("pending", UNAVAILABLE))
            if self._unanswered >= OUTAGE_CALLS:
                self.stop(FatalCallError(f"{OUTAGE_CALLS} calls in a row failed, the last: {error}", error.reason))
        except FatalCallError as error:
            self.stop(error)
            self._fail(group, pending(error))
        else:
            self._unanswered, self._answered = 0, True
            first = True
            for wanted in group:
                if note := notes.get(wanted.key):
                    self._paid(wanted, note, reply, first)
                    first = False
            missing = [wanted for wanted in group if not notes.get(wanted.key)]
            if missing and rounds < MISSING_ROUNDS:
                await self._group(ask, sheet, missing, rounds + 1)
            else:
                self._fail(missing, Problem("fallback", "empty: the model's answer holds no text for this chunk"))

    def stop(self, error: FatalCallError) -> None:
        """Send no further call."""
        self._limiter.stop(error)

    def _fail(self, group: Iterable[Wanted], problem: Problem) -> None:
        for wanted in group:
            self._failed(wanted, problem)

    def _request(self, sheet: _Sheet, group: Sequence[Wanted]) -> Request:
        max_tokens = self._max_tokens
        if sheet.grouped:
            max_tokens = len(group) * (max_tokens + JSON_TOKENS)
        return Request(
            model=self._model,
            max_tokens=max_tokens,
            content=(sheet.view, Block(own_text(sheet.prompt, group, sheet.grouped))),
            system=sheet.prompt.system,
            json_schema=GROUP_SCHEMA if sheet.grouped else None,
            label=group[0].doc_id,
            view=sheet.number,
        )


def _notes(reply: Reply, sheet: _Sheet, group: Sequence[Wanted]) -> dict[str, str]:
    """The usable contexts by key; numbers that were not asked for are left out."""
    if not sheet.grouped:
        return {group[0].key: clean(reply.text)}
    said = {item.chunk: clean(item.context) for item in reply.parsed(_Group).contexts}
    return {wanted.key: said.get(wanted.number, "") for wanted in group}


def is_grouped(asked: Asked, chunks_per_call: int) -> bool:
    """Whether the chunks of a view are asked about several at a time, by their numbers."""
    return chunks_per_call > 1 and asked.wanted[0].chunk is not None


def view_text(asked: Asked, grouped: bool) -> str:
    """The first block of every request about a view."""
    return asked.prompt.view(asked.view, numbered=grouped)


def own_text(prompt: Prompt, group: Sequence[Wanted], grouped: bool) -> str:
    """The second block of the request about a group."""
    if grouped:
        return prompt.group([wanted.number for wanted in group])
    chunk = group[0].chunk
    return prompt.summary if chunk is None else prompt.chunk(chunk)


def groups(wanted: Sequence[Wanted], size: int) -> Iterator[Sequence[Wanted]]:
    """What is asked for in one call each."""
    return (wanted[at : at + size] for at in range(0, len(wanted), size))


def pending(error: FatalCallError) -> Problem:
    """What a fatal error means for a context that nobody could ask for."""
    return Problem("pending", _PENDING.get(error.reason, UNAVAILABLE))
