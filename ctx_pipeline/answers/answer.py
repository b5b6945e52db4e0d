"""Answers by Claude, with citations that are checked against the passages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ctx_pipeline.answers.prompt import SCHEMA, Prompt, last_line
from ctx_pipeline.claude.client import ClaudeClient, RetryPolicy, run_sync
from ctx_pipeline.claude.outcome import CallRemedies
from ctx_pipeline.claude.pricing import Prices
from ctx_pipeline.claude.request import Block, Request
from ctx_pipeline.index.search import Hit
from ctx_pipeline.settings import AnswerSettings

DEADLINE_S = 120
REMEDIES = CallRemedies(prompt="lower -k", answer="raise answers.max_tokens", rate="lower -k")
_MARK = re.compile(r"\[(\d+(?:\s*,\s*\d+)*)\]")


@dataclass(frozen=True, slots=True)
class Citation:
    """A passage that an answer rests on."""

    number: int
    """As it stands in the answer, from 1."""
    doc_id: str
    heading_path: tuple[str, ...]
    first_line: int
    last_line: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model answered."""

    text: str
    answered: bool
    """False when the passages do not hold the answer; the text then says what is missing."""
    citations: list[Citation]
    """In the order of their first mention."""
    model: str
    usd: float
    warnings: list[str]

    def to_json(self) -> dict[str, Any]:
        """The contract of `ctx-pipeline ask --json`."""
        return {
            "answer": self.text,
            "answered": self.answered,
            "citations": [
                {
                    "number": citation.number,
                    "doc_id": citation.doc_id,
                    "heading_path": list(citation.heading_path),
                    "first_line": citation.first_line,
                    "last_line": citation.last_line,
                }
                for citation in self.citations
            ],
            "model": self.model,
            "usd": self.usd,
        }


@dataclass(frozen=True)
class _Reply:
    answered: bool
    answer: str
    citations: list[int]


def ask(
    prompt: Prompt, hits: Sequence[Hit], settings: AnswerSettings, prices: Prices, retry: RetryPolicy | None = None
) -> Answer:
    """Send a prompt made of `hits`, and check what comes back.

    Raises FatalError without a usable key, SettingsError for a model that is not in `prices`, and CtxError when no
    usable answer can be had.
    """
    return run_sync(_ask(prompt, hits, settings, prices, retry))


async def _ask(
    prompt: Prompt, hits: Sequence[Hit], settings: AnswerSettings, prices: Prices, retry: RetryPolicy | None
) -> Answer:
    async with ClaudeClient(prices, REMEDIES, retry=retry) as client:
        request = Request(
            settings.model, settings.max_tokens, (Block(prompt.content),), prompt.system, SCHEMA, label="ask"
        )
        reply = await client.call(request, deadline_s=DEADLINE_S)
    said = reply.parsed(_Reply)
    return read_answer(said.answer, said.answered, said.citations, hits, reply.model, float(reply.usd))


def read_answer(
    text: str, answered: bool, listed: Sequence[int], hits: Sequence[Hit], model: str, usd: float
) -> Answer:
    """The answer with the citations that exist; marks in the text count, then the listed ones.

    An answer that names no passage of the prompt is kept, with a warning: nothing shows that it comes from there.
    """
    marked = [int(number) for group in _MARK.findall(text) for number in group.split(",")]
    numbers = list(dict.fromkeys([*marked, *listed]))
    known = [number for number in numbers if 1 <= number <= len(hits)]
    warnings = []
    if len(known) < len(numbers):
        unknown = ", ".join(str(number) for number in numbers if number not in known)
        warnings.append(f"the answer cites passages that do not exist: {unknown}")
    if answered and not known:
        warnings.append("the answer names no passage that supports it")
    citations = [
        Citation(n, hits[n - 1].doc_id, hits[n - 1].heading_path, hits[n - 1].line, last_line(hits[n - 1]))
        for n in known
    ]
    return Answer(text.strip(), answered, citations if answered else [], model, usd, warnings)
