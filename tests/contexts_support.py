"""Documents, chunks and contextualizers for the tests of contexts by a model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ctx_pipeline.chunking.model import Chunk, SizeLimit
from ctx_pipeline.chunking.recursive import split
from ctx_pipeline.claude.client import RetryPolicy
from ctx_pipeline.context_settings import ContextSettings
from ctx_pipeline.contexts import open_contextualizer
from ctx_pipeline.contexts.model import Context, Contextualizer, Written
from ctx_pipeline.documents.model import Document
from ctx_pipeline.documents.parse import parse
from ctx_pipeline.embedding.hashing import HashingEmbedder
from ctx_pipeline.index.tables import Store
from tests.emulators.messages import KEY, MessagesEmulator
from tests.emulators.prompt import texts

Documents = list[tuple[Document, list[Chunk]]]
EMBEDDER = HashingEmbedder()
QUICK = RetryPolicy(attempts=8, first_wait_s=0.001, longest_wait_s=0.01, longest_retry_after_s=0.02, attempt_s=2)


def limit(max_tokens: int = 512) -> SizeLimit:
    return SizeLimit(max_tokens, max_tokens, EMBEDDER.count_tokens)


def document(text: str, path: str = "guide.md", *, chunk_tokens: int = 100) -> tuple[Document, list[Chunk]]:
    parsed = parse(text.encode(), path)
    chunks = split(text, markdown=path.endswith(".md"), limit=limit(chunk_tokens))
    return Document(f"docs/{path}", "file:///x", len(text), 0, 0, "", parsed), chunks


def prose(topic: str, sections: int, *, words: int = 60, level: int = 2) -> str:
    """A document of sections whose sentences all differ."""
    parts = [f"# Guide to {topic}"]
    for section in range(sections):
        sentences = [f"The rule {topic} {section} {word} applies to the plan here." for word in range(words // 10)]
        parts.append(f"{'#' * level} Part {section} of {topic}\n\n" + " ".join(sentences))
    return "\n\n".join(parts) + "\n"


def corpus(folder: Path, count: int) -> Documents:
    """Real documents of a folder."""
    found: Documents = []
    for file in sorted(folder.rglob("*.md"))[:count]:
        path = file.relative_to(folder).as_posix()
        parsed = parse(file.read_bytes(), path)
        chunks = split(parsed.text, markdown=True, limit=limit(384))
        found.append((Document(f"docs/{path}", file.as_uri(), 0, 0, 0, "", parsed), chunks))
    return found


def store_at(folder: Path) -> Store:
    store = Store(folder)
    store.create()
    return store


class Desk:
    """A storage, the emulator, and the settings that lead to contextualizers over them."""

    def __init__(self, folder: Path, api: MessagesEmulator, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = store_at(folder)
        self.api = api
        self.key = monkeypatch
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", api.url)
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.delenv(name, raising=False)

    def open(self, **settings: Any) -> Contextualizer:
        """As a new process would: nothing is known but what is stored."""
        timing = {name: settings.pop(name) for name in ("retry", "clock", "sleep", "jitter") if name in settings}
        chosen = ContextSettings.model_validate({"method": "claude", **settings})
        return open_contextualizer(chosen, EMBEDDER, self.store, **{"retry": QUICK, **timing})

    def write(self, documents: Sequence[tuple[Document, Sequence[Chunk]]], **settings: Any) -> list[Written]:
        return written(self.open(**settings), documents)


def written(contextualizer: Contextualizer, documents: Sequence[tuple[Document, Sequence[Chunk]]]) -> list[Written]:
    results = contextualizer.write(documents)
    assert not [result for result in results if isinstance(result, Exception)]
    return [result for result in results if isinstance(result, Written)]


def contexts(results: Sequence[Written]) -> list[Context]:
    return [context for result in results for context in result.contexts]


def grouped_answer(body: dict[str, Any], *, without: int = 0) -> Any:
    """A context for each number asked for, that tells which chunk of the view it was written for."""
    view, rest = texts(body)
    asked = re.search(r"numbers: ([\d, ]+)\.", rest)
    assert asked
    marked = dict(re.findall(r'<chunk number="(\d+)">\n(.*?)\n</chunk>', view, re.DOTALL))
    numbers = [number for number in asked[1].split(", ") if int(number) != without]
    said = [{"chunk": int(number), "context": f"About: {marked[number][:40]}"} for number in reversed(numbers)]
    return {"contexts": [*said, {"chunk": 999, "context": "Nobody asked."}]}
