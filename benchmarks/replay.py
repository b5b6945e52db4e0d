"""How many calls real edits cost: 16 commits to the Spanish documentation of FastAPI, refreshed one by one.

    python -m benchmarks.replay

Run it from the repository's folder, with the project installed. The calls go to the emulator of the tests in this
process, which answers at once; nothing leaves the machine. The corpus is read from ../shared/corpora. The embedder is
`hashing`. Printed as a Markdown table: for each commit the documents it touched, the chunks whose text was not in the
document before, and the calls with `contexts.reuse` "exact" and "chunk". A second part inserts a section at the top of
documents of 100,000 tokens and counts the windows that are asked about again. It takes about two minutes.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from benchmarks.workspace import Workspace, corpus, generated_document, heading, verdict
from ctx_pipeline.chunking.model import Chunk, SizeLimit
from ctx_pipeline.chunking.recursive import split
from ctx_pipeline.chunking.tokens import count_tokens
from ctx_pipeline.context_settings import ContextSettings
from ctx_pipeline.contexts.view import View, document_views
from ctx_pipeline.documents.parse import parse
from ctx_pipeline.index.lock import storage_lock
from ctx_pipeline.index.schemas import CHUNKS
from ctx_pipeline.refresh import Pipeline
from ctx_pipeline.settings_file import load_settings
from ctx_pipeline.summary import Summary
from tests.emulators.messages import KEY, MessagesEmulator

MAX_WINDOWS = 2
LONG_DOCUMENTS = 20
LONG_CHARACTERS = 400_000
SECTION = "## Novedades\n\nDesde esta versión, el plan Pro incluye alertas y copias diarias sin coste adicional.\n\n"


@dataclass(frozen=True, slots=True)
class Step:
    """One commit, refreshed."""

    documents: int
    changed_chunks: int
    calls: int
    usd: Decimal


def main() -> None:
    """Run the benchmark."""
    heading("16 commits to fastapi-es, the calls that each costs")
    exact, by_chunk = list(replay("exact")), list(replay("chunk"))
    print("| commit | documents | chunks changed | calls, exact | USD | calls, chunk | USD |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for number, (one, other) in enumerate(zip(exact, by_chunk, strict=True)):
        print(_row(str(number) if number else "base", one, other))
    print(_row("1 to 16", _sum(exact[1:]), _sum(by_chunk[1:])))
    heading(f"a section inserted at the top of {LONG_DOCUMENTS} documents of about 100,000 tokens")
    asked = [windows_asked_again(number) for number in range(LONG_DOCUMENTS)]
    print(f"  {min(total for _, total in asked)} to {max(total for _, total in asked)} windows each")
    verdict("windows asked about again, at most", max(again for again, _ in asked), MAX_WINDOWS, "")


def replay(reuse: str) -> Iterator[Step]:
    """The first refresh, then one for each commit."""
    with tempfile.TemporaryDirectory() as folder, MessagesEmulator() as api:
        workspace = Workspace(Path(folder) / "work", "hashing", Path(folder) / "models")
        os.environ.update(
            workspace.environment,
            ANTHROPIC_API_KEY=KEY,
            ANTHROPIC_BASE_URL=api.url,
            CTX_CONTEXTS__METHOD="claude",
            CTX_CONTEXTS__REUSE=reuse,
            CTX_CONTEXTS__MAX_USD="100.0",
        )
        edits = corpus("fastapi-es/edits")
        steps = map(json.loads, edits.with_name("edits.jsonl").read_text(encoding="utf-8").splitlines())
        workspace.copy_in(corpus("fastapi-es/base"))
        summary, before = _refresh(), _texts()
        yield Step(summary.added, sum(map(len, before.values())), summary.calls, summary.usd)
        for step in steps:
            workspace.copy_in(edits / f"{step['step']:02d}")
            summary, after = _refresh(), _texts()
            changed = sum(text not in before.get(doc_id, ()) for doc_id, own in after.items() for text in own)
            yield Step(len(step["added"]) + len(step["modified"]), changed, summary.calls, summary.usd)
            before = after


def windows_asked_again(number: int) -> tuple[int, int]:
    """Windows of a long document that are new after a section was inserted below its title, and all of them."""
    text = generated_document(number, 0, characters=LONG_CHARACTERS)
    title, _, rest = text.partition("\n\n")
    before, after = _views(text), _views(f"{title}\n\n{SECTION}{rest}")
    known = {(view.title, view.heading_path, view.text) for view in before}
    return sum((view.title, view.heading_path, view.text) not in known for view in after), len(after)


def _views(text: str) -> list[View]:
    chunks: list[Chunk] = split(text, markdown=True, limit=SizeLimit(384, 384, count_tokens))
    return document_views(parse(text.encode(), "long.md"), chunks, ContextSettings().window_tokens)


def _refresh() -> Summary:
    pipeline = Pipeline(load_settings())
    with storage_lock(pipeline.store.uri, "a benchmark"):
        return pipeline.refresh("benchmark")


def _texts() -> dict[str, list[str]]:
    """The texts of all chunks by document."""
    found: dict[str, list[str]] = {}
    for row in Pipeline(load_settings()).store.all_rows(CHUNKS, ["doc_id", "text"]).to_pylist():
        found.setdefault(row["doc_id"], []).append(row["text"])
    return found


def _sum(steps: list[Step]) -> Step:
    return Step(
        sum(step.documents for step in steps),
        sum(step.changed_chunks for step in steps),
        sum(step.calls for step in steps),
        sum((step.usd for step in steps), Decimal(0)),
    )


def _row(name: str, exact: Step, by_chunk: Step) -> str:
    return (
        f"| {name} | {exact.documents} | {exact.changed_chunks} | {exact.calls} | {exact.usd:.4f} | "
        f"{by_chunk.calls} | {by_chunk.usd:.4f} |"
    )


if __name__ == "__main__":
    main()
