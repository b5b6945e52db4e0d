"""A piece of a table carries the table's header row in its context, whatever wrote the context, and not in its text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ctx_pipeline.chunking.model import Chunk
from ctx_pipeline.chunking.recursive import RecursiveChunker
from ctx_pipeline.chunking.semantic import SemanticChunker
from ctx_pipeline.chunking.structure import StructureChunker
from ctx_pipeline.context_settings import ContextSettings
from ctx_pipeline.contexts import open_contextualizer
from ctx_pipeline.contexts.model import Context
from ctx_pipeline.documents.model import Document
from ctx_pipeline.documents.parse import parse
from ctx_pipeline.embedding.hashing import HashingEmbedder
from ctx_pipeline.index.embedded import embedded_texts
from ctx_pipeline.index.rows import chunk_from_row, chunk_rows
from ctx_pipeline.settings import CONTEXT_TOKENS
from tests.contexts_support import EMBEDDER, Desk, contexts, store_at
from tests.emulators.messages import MessagesEmulator
from tests.markdown_documents import size_limit
from tests.project import Project

HEAD = ("Valve", "Pressure (bar)", "Seal", "Service months")
LIMIT = size_limit(1000, 120)


def table(rows: int, head: tuple[str, ...] = HEAD) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for row in range(rows):
        lines.append("| " + " | ".join([f"V{row:03}", *(f"{row}{column}" for column in range(1, len(head)))]) + " |")
    return "\n".join(lines)


def chunks_of(text: str, *, overlap: int = 0) -> list[Chunk]:
    return RecursiveChunker(LIMIT, overlap, "x").split(parse(text.encode(), "valves.md"))


def document(text: str) -> tuple[Document, list[Chunk]]:
    return Document("docs/valves.md", "file:///x", len(text), 0, 0, "", parse(text.encode(), "valves.md")), chunks_of(
        text
    )


def contexts_of(text: str, folder: Path, method: str = "outline") -> list[Context]:
    settings = ContextSettings.model_validate({"method": method})
    [written] = open_contextualizer(settings, EMBEDDER, store_at(folder)).write([document(text)])
    assert not isinstance(written, Exception)
    return written.contexts


def test_later_pieces_of_a_table_carry_its_head_and_the_first_does_not() -> None:
    text = f"# Valves\n\n{table(60)}\n\nEnd of the list.\n"
    first, *rest = chunks_of(text)
    assert first.table_head == () and "| Valve | Pressure" in first.text
    assert len(rest) > 3
    assert all(chunk.table_head == HEAD and "Pressure" not in chunk.text for chunk in rest)
    assert all(chunk.text == text[chunk.start : chunk.end] for chunk in rest)


def test_a_chunk_that_begins_with_the_head_does_not_carry_it() -> None:
    first, *rest = chunks_of(table(60))
    assert (first.table_head, {chunk.table_head for chunk in rest}) == ((), {HEAD})


def test_a_whole_table_and_what_follows_a_table_carry_nothing() -> None:
    text = f"{table(3)}\n\n" + "Prose goes on. " * 60 + f"\n\n{table(60)}\n\n" + "Prose goes on. " * 60
    for chunk in chunks_of(text):
        assert bool(chunk.table_head) == chunk.text.startswith("| V0")
    assert any(chunk.table_head for chunk in chunks_of(text))


@pytest.mark.parametrize(("first", "rest"), [("- ", "  "), ("> ", "> "), ("1. ", "   "), ("- > ", "  > ")])
def test_tables_in_lists_and_quotes_carry_their_head(first: str, rest: str) -> None:
    text = f"Before.\n\n{first}The list:\n{rest}\n{rest}" + table(60).replace("\n", f"\n{rest}") + "\n\nAfter.\n"
    chunks = chunks_of(text)
    assert sum(chunk.table_head == HEAD for chunk in chunks) == len(chunks) - 1 > 3


@pytest.mark.parametrize("overlap", [10, 25, 40])
def test_a_chunk_that_repeats_the_head_by_overlap_does_not_carry_it(overlap: int) -> None:
    text = f"# Valves\n\n{table(40)}\n\n## Pumps\n\n" + "\n\n".join(table(5, (f"Pump {n}", "Flow")) for n in range(20))
    chunks = chunks_of(text, overlap=overlap)
    assert any(chunk.table_head for chunk in chunks)
    for chunk in chunks:
        assert not (chunk.table_head and f"| {' | '.join(chunk.table_head)} |" in chunk.text)
        begins_inside = re.match(r"\| (V\d|Pump \d+ [^|]*\d)|\|[-|]+\n", chunk.text) is not None
        assert bool(chunk.table_head) >= (begins_inside and chunk.text.startswith("| V"))


def test_other_strategies_carry_the_head_too() -> None:
    text = f"# Valves\n\n{table(60)}\n"
    for chunker in (StructureChunker(LIMIT, 0, "x"), SemanticChunker(LIMIT, 80, HashingEmbedder(), "x")):
        first, *rest = chunker.split(parse(text.encode(), "valves.md"))
        assert (first.table_head, {chunk.table_head for chunk in rest}) == ((), {HEAD})


def test_cells_are_plain_text() -> None:
    head = ("**Valve** `type`", "[Pressure](p.md) (bar)", "a \\| b", "Seal")
    chunks = chunks_of(table(60, head))
    assert chunks[-1].table_head == ("Valve type", "Pressure (bar)", "a | b", "Seal")


def test_the_head_stands_behind_the_outline(tmp_path: Path) -> None:
    found = contexts_of(f"# Valves\n\n{table(60)}\n", tmp_path)
    assert found[0].text == "Valves"
    assert {context.text for context in found[1:]} == {"Valves\nValve | Pressure (bar) | Seal | Service months"}


def test_the_plain_baseline_stays_without(tmp_path: Path) -> None:
    assert {context.text for context in contexts_of(f"# Valves\n\n{table(60)}\n", tmp_path, "none")} == {""}


def test_documents_that_a_rule_leaves_without_contexts_stay_without(tmp_path: Path) -> None:
    rule = [{"glob": "*.md", "method": "none"}]
    settings = ContextSettings.model_validate({"method": "outline", "rule": rule})
    [written] = open_contextualizer(settings, EMBEDDER, store_at(tmp_path)).write(
        [document(f"# Valves\n\n{table(60)}")]
    )
    assert not isinstance(written, Exception)
    assert {context.text for context in written.contexts} == {""}


def test_a_long_head_is_cut_at_columns(tmp_path: Path) -> None:
    head = tuple(f"Column number {number} of the table" for number in range(30))
    text = contexts_of(f"# Valves\n\n{table(30, head)}\n", tmp_path)[-1].text
    added = text.removeprefix("Valves\n")
    cells = added.split(" | ")
    assert 1 < len(cells) < 30
    assert tuple(cells) == head[: len(cells)]
    assert EMBEDDER.count_tokens([added])[0] <= CONTEXT_TOKENS // 3
    assert EMBEDDER.count_tokens([" | ".join(head[: len(cells) + 1])])[0] > CONTEXT_TOKENS // 3


def test_the_first_column_is_always_there(tmp_path: Path) -> None:
    head = (" ".join("abcdefghijklmnopqrstuvwxyz" * 3), "Second")
    added = contexts_of(f"# Valves\n\n{table(60, head)}\n", tmp_path)[-1].text.removeprefix("Valves\n")
    assert added.startswith("a b c") and "Second" not in added
    assert 10 < EMBEDDER.count_tokens([added])[0] <= CONTEXT_TOKENS // 3


def test_a_long_heading_path_loses_its_middle_to_the_head(tmp_path: Path) -> None:
    for count in range(36, 44):
        names = [" ".join(f"{level}{chr(97 + word % 26)}" for word in range(count)) for level in range(1, 4)]
        path = "\n\n".join(f"{'#' * level} {name}" for level, name in enumerate(names, start=1))
        found = contexts_of(f"{path}\n\n{table(60)}\n", tmp_path / str(count))[-1].text
        assert found.endswith("\nValve | Pressure (bar) | Seal | Service months")
        assert EMBEDDER.count_tokens([found])[0] <= CONTEXT_TOKENS
        ends = f"{names[0]} › … › {names[2]}\nValve | Pressure (bar) | Seal | Service months"
        if EMBEDDER.count_tokens([ends])[0] <= CONTEXT_TOKENS:
            assert found.startswith(names[0]) and f" › {names[2]}\n" in found


def test_the_head_stands_beside_a_paid_note_and_is_in_no_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MessagesEmulator() as api:
        _assert_beside_the_note(Desk(tmp_path, api, monkeypatch), api)


def _assert_beside_the_note(desk: Desk, api: MessagesEmulator) -> None:
    text = f"# Valves\n\n{table(60)}\n"
    found = contexts(desk.write([document(text)]))
    heads = [context.text.partition("\n")[2] for context in found]
    assert heads == ["", *["Valve | Pressure (bar) | Seal | Service months"] * (len(found) - 1)]
    assert all(context.text.partition("\n")[0] for context in found)
    assert not any("Valve | Pressure (bar) | Seal | Service months\n" in str(body) for body in api.bodies)
    assert not any("\\nValve | Pressure" in str(body) for body in api.bodies)
    # The memo holds the notes alone: with another header row it would be asked for the same.
    asked = len(api.bodies)
    [document_, chunks] = document(text)
    other = [Chunk(**{**vars(chunk), "table_head": ("Other",) if chunk.table_head else ()}) for chunk in chunks]
    again = contexts(desk.write([(document_, other)]))
    assert len(api.bodies) == asked
    assert [context.text.partition("\n")[0] for context in again] == [c.text.partition("\n")[0] for c in found]
    assert {context.text.partition("\n")[2] for context in again} == {"", "Other"}
    assert [context.memo_key for context in again] == [context.memo_key for context in found]


def test_the_head_is_stored_with_the_chunk() -> None:
    chunks = chunks_of(f"# Valves\n\n{table(60)}\n")
    assert [chunk_from_row(row) for row in chunk_rows("docs/valves.md", chunks, "1")] == chunks


def test_words_of_the_head_find_the_pieces(project: Project) -> None:
    project.write("valves.md", f"# Valves\n\n{table(200)}\n")
    project.refresh()
    rows = project.search_rows()
    assert len(rows) > 3
    for row in rows:
        assert "Service months" in row["text_english"]
        assert "Service months" in f"{row['context']}\n{row['text']}"
    assert all("Service months" not in row["text"] for row in rows[1:])
    # Contexts alone are written again with what is stored of the chunks.
    project.write_settings(contexts={"method": "none"})
    project.refresh()
    assert not any("Service months" in row["text_english"] for row in project.search_rows()[1:])
    project.write_settings(contexts={"method": "outline"})
    project.refresh()
    assert [row["context"] for row in project.search_rows()] == [row["context"] for row in rows]


def test_the_head_is_embedded(tmp_path: Path) -> None:
    document_, chunks = document(f"# Valves\n\n{table(60)}\n")
    found = contexts_of(f"# Valves\n\n{table(60)}\n", tmp_path)
    for text in embedded_texts(document_, chunks, found, EMBEDDER):
        assert "Service months" in text.text
