"""Late chunking: vectors of chunks pooled from the tokens of a longer window, and windows that stay local."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ctx_pipeline.chunking.model import Chunk, SizeLimit
from ctx_pipeline.chunking.recursive import split
from ctx_pipeline.contexts.model import Context
from ctx_pipeline.documents.model import Document, Parsed
from ctx_pipeline.embedding import open_embedder
from ctx_pipeline.embedding.e5 import E5Embedder
from ctx_pipeline.embedding.hashing import HashingEmbedder
from ctx_pipeline.embedding.late import LateChunkingEmbedder, chunk_windows
from ctx_pipeline.errors import SettingsError
from ctx_pipeline.index.embedded import EmbeddedText, embed, embedded_texts
from ctx_pipeline.index.search import SearchIndex
from ctx_pipeline.settings_file import load_settings
from tests.project import Project

SPANISH = (
    "Berta Ruiz fundó en Teruel la editorial Cierzo, que publica novelas traducidas del checo.",
    "Después ella la vendió a sus empleados por un euro.",
    "¿Qué hizo Berta Ruiz con la editorial Cierzo?",
)
ENGLISH = (
    "The Halden observatory stands on a hill above the fjord and was built by a shipping company.",
    "It was closed after the fire and never opened again.",
    "What happened to the Halden observatory?",
)
TEXTS = {
    "prose": "Berta Ruiz fundó la editorial en Teruel. Después ella la vendió a sus empleados.",
    "decomposed accents": "La cancio\u0301n u\u0301nica de An\u0303a. Otra cancio\u0301n mas.",
    "unknown characters": "🧿🧿 x🧿y \U000e0fff\u0378 ﷺ. Otra frase 🧿 aquí.",
    "no white space": "漢字仮名交じり文です。今日は天気がいい。" * 4,
    "white space": "  a\t\n b \u3000\x1c c  ",
}

PARAGRAPHS = [
    f"Párrafo {n} sobre el tema {n * 7 % 23}, con {n % 5 + 2} detalles más." * (n % 4 + 1) for n in range(200)
]


@pytest.fixture(scope="module")
def e5(e5_cache_folder: Path) -> E5Embedder:
    return E5Embedder(e5_cache_folder)


@pytest.fixture
def late_project(project: Project, e5_cache_folder: Path) -> Project:
    """A project whose settings ask for late chunking by e5."""
    project.write_settings(
        embedding={"model": "multilingual-e5-small", "path": str(e5_cache_folder), "late_chunking": True},
        chunking={"max_tokens": 32},
    )
    return project


def cut(text: str, max_tokens: int = 40) -> list[Chunk]:
    return split(text, markdown=True, limit=SizeLimit(max_tokens, max_tokens, HashingEmbedder().count_tokens))


def vectors(embedder: E5Embedder | LateChunkingEmbedder, text: str, chunks: Sequence[Chunk]) -> NDArray[np.float32]:
    document = Document("docs/a.md", "", 0, 0, 0, "", Parsed(text, "text/markdown", "", "und"))
    contexts = [Context(text="", keywords="", method="none")] * len(chunks)
    return embed(embedder, embedded_texts(document, chunks, contexts, embedder))


def chunk_at(text: str, part: str) -> Chunk:
    start = text.index(part)
    return Chunk(start, start + len(part), 1, part, (), 10, 10)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_the_span_of_a_whole_window_has_the_vector_of_the_passage(e5: E5Embedder, text: str) -> None:
    np.testing.assert_allclose(e5.embed_spans([text], [(0, len(text))]), e5.embed_passages([text]), atol=1e-5)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_any_span_has_a_vector(e5: E5Embedder, text: str) -> None:
    spans = [(start, end) for start in range(0, len(text), 9) for end in {start, start + 1, len(text)}]
    np.testing.assert_allclose(np.linalg.norm(e5.embed_spans([text] * len(spans), spans), axis=1), 1, atol=1e-5)


def test_vectors_of_spans_are_rows_in_the_order_of_the_windows(e5: E5Embedder) -> None:
    windows, spans = [SPANISH[0], ENGLISH[0], SPANISH[0]], [(11, 30), (0, 10), (0, 10)]
    together = e5.embed_spans(windows, spans)
    alone = [e5.embed_spans([window], [span]) for window, span in zip(windows, spans, strict=True)]
    np.testing.assert_allclose(together, np.concatenate(alone), atol=1e-6)
    assert e5.embed_spans([], []).shape == (0, 384)


def test_a_span_weighs_the_tokens_that_it_holds(e5: E5Embedder) -> None:
    text = "uno dos tres cuatro cinco seis siete ocho nueve diez"
    words = [(text.index(word), text.index(word) + len(word)) for word in text.split()]
    pairs = [(first[0], second[1]) for first, second in pairwise(words)]
    by_word = e5.embed_spans([text] * len(words), words)
    for n, pair in enumerate(e5.embed_spans([text] * len(pairs), pairs)):
        assert set(np.argsort(-(by_word @ pair))[:2]) == {n, n + 1}


def test_a_span_beyond_the_window_has_a_vector(e5: E5Embedder) -> None:
    text = "palabra " * 2_000
    assert np.linalg.norm(e5.embed_spans([text], [(len(text) - 8, len(text))])[0]) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(("before", "pronouns", "question"), [SPANISH, ENGLISH], ids=["Spanish", "English"])
def test_a_chunk_of_pronouns_gets_nearer_to_a_question_that_names_their_entity(
    e5: E5Embedder, before: str, pronouns: str, question: str
) -> None:
    text = f"{before} {pronouns}"
    chunks = [chunk_at(text, before), chunk_at(text, pronouns)]
    query = e5.embed_query(question)
    ordinary = vectors(e5, text, chunks)[1] @ query
    late = vectors(LateChunkingEmbedder(e5), text, chunks)[1] @ query
    assert late > ordinary + 0.01


def test_one_abstraction_gives_what_either_way_sees() -> None:
    text = "# T\n\nUno dos.\n\nTres cuatro.\n"
    document = Document("docs/a.md", "", 0, 0, 0, "", Parsed(text, "text/markdown", "T", "und"))
    chunks = [chunk_at(text, "# T\n\nUno dos."), chunk_at(text, "Tres cuatro.")]
    contexts = [Context(text="contexto", keywords="", method="outline")] * 2
    ordinary = embedded_texts(document, chunks, contexts, HashingEmbedder())
    assert ordinary == [EmbeddedText("contexto\n\n# T\n\nUno dos."), EmbeddedText("contexto\n\nTres cuatro.")]


blocks = st.lists(
    st.one_of(
        st.sampled_from(["# Uno", "## Dos", "## Tres", "### Más"]),
        st.lists(
            st.sampled_from(["sol", "luna", "mar,", "x" * 90, "漢字仮名" * 12, "fin."]), min_size=1, max_size=60
        ).map(" ".join),
    ),
    max_size=25,
)


@settings(deadline=None)
@given(blocks, st.integers(8, 60), st.integers(8, 200))
def test_every_chunk_lies_in_a_window_that_fits(parts: list[str], max_tokens: int, window_tokens: int) -> None:
    count = HashingEmbedder().count_tokens
    text = "\n\n".join(parts)
    chunks = cut(text, max_tokens)
    windows = chunk_windows(text, chunks, window_tokens, count)
    for chunk, (start, end) in zip(chunks, windows, strict=True):
        assert start <= chunk.start < chunk.end <= end
        assert (start, end) == (chunk.start, chunk.end) or count([text[start:end]])[0] <= window_tokens


def test_a_chunk_that_fills_the_window_has_it_alone() -> None:
    text = "\n\n".join(PARAGRAPHS[:12])
    chunks = cut(text, 200)
    windows = chunk_windows(text, chunks, 20, HashingEmbedder().count_tokens)
    assert windows == [(chunk.start, chunk.end) for chunk in chunks]


def test_chunks_see_what_is_beside_them_but_not_another_section() -> None:
    text = "# Guía\n\n## Uno\n\n" + "\n\n".join(PARAGRAPHS[:40]) + "\n\n## Dos\n\n" + "\n\n".join(PARAGRAPHS[40:80])
    chunks = cut(text)
    border = text.index("## Dos")
    windows = chunk_windows(text, chunks, 500, HashingEmbedder().count_tokens)
    for chunk, (start, end) in zip(chunks, windows, strict=True):
        assert start < chunk.start or chunk.start in (0, border)
        assert end > chunk.end or chunk.end in (chunks[-1].end, text.rindex(".", 0, border) + 1)
        assert not start < border < end


def seen(text: str) -> list[str]:
    windows = chunk_windows(text, cut(text), 500, HashingEmbedder().count_tokens)
    return [text[start:end] for start, end in windows]


def test_an_edit_changes_only_windows_that_hold_the_edited_text() -> None:
    """Without headings, so that nothing but the distance keeps the others as they are."""
    sentence = "Frase añadida."
    before = set(seen("\n\n".join(PARAGRAPHS)))
    for n in (0, 50, 199):
        edited = [*PARAGRAPHS]
        edited[n] = f"{PARAGRAPHS[n]} {sentence}"
        changed = [window for window in seen("\n\n".join(edited)) if window not in before]
        ordinary = {chunk.text for chunk in cut("\n\n".join(edited))} - {c.text for c in cut("\n\n".join(PARAGRAPHS))}
        assert any(sentence in window for window in changed)
        assert all(sentence in window or any(text in window for text in ordinary) for window in changed)
        assert len(changed) < len(before) / 2


def test_only_what_is_near_an_edit_is_embedded_again(late_project: Project) -> None:
    late_project.write("a.md", "\n\n".join(f"## Parte {n}\n\n{PARAGRAPHS[n]}" for n in range(6)))
    first = late_project.refresh()
    assert first.embedded >= 6
    assert first.truncated == 0
    late_project.write("b.md", (late_project.docs / "a.md").read_bytes())
    (late_project.docs / "a.md").unlink()
    assert late_project.refresh().embedded == 0, "a renamed document keeps its vectors"
    text = (late_project.docs / "b.md").read_text(encoding="utf-8")
    late_project.write("b.md", text.replace("## Parte 3\n\n", "## Parte 3\n\nUna frase nueva. "))
    edited = late_project.refresh()
    assert 1 <= edited.embedded <= 3
    assert edited.reused >= 5
    assert edited.truncated == 0
    incremental = {row["chunk_id"]: row["vector"] for row in late_project.search_rows(("chunk_id", "vector"))}
    late_project.write_settings(storage={"uri": str(late_project.root / "from-nothing")})
    late_project.refresh()
    for row in late_project.search_rows(("chunk_id", "vector")):
        np.testing.assert_allclose(incremental[row["chunk_id"]], row["vector"], atol=1e-6)


def test_switching_builds_another_table_and_both_legs_search_it(late_project: Project) -> None:
    late_project.write("a.md", f"{SPANISH[0]}\n\n{SPANISH[1]}\n")
    late_project.write("b.md", f"{ENGLISH[0]}\n\n{ENGLISH[1]}\n")
    late_project.write_settings(embedding={"late_chunking": False})
    late_project.refresh()
    ordinary = {row["chunk_id"]: row for row in late_project.search_rows()}
    late_project.write_settings(embedding={"late_chunking": True})
    summary = late_project.refresh()
    assert (summary.switched_to, summary.embedded, summary.reused) == ("search_2", len(ordinary), 0)
    rows = late_project.search_rows()
    assert {row["chunk_id"]: row["text_spanish"] for row in rows} == {
        name: row["text_spanish"] for name, row in ordinary.items()
    }
    assert all(np.abs(np.subtract(row["vector"], ordinary[row["chunk_id"]]["vector"])).max() > 1e-3 for row in rows)
    index = SearchIndex.open(late_project.settings.storage.uri, late_project.settings)
    assert index.search(SPANISH[2], k=1, mode="vector")[0].doc_id == "docs/a.md"
    assert index.search("observatory", k=1, mode="keyword")[0].doc_id == "docs/b.md"
    assert index.search(ENGLISH[2], k=1)[0].doc_id == "docs/b.md"
    late_project.write_settings(embedding={"late_chunking": False})
    reader = SearchIndex.open(late_project.settings.storage.uri, late_project.settings)
    assert reader.search(SPANISH[2], k=1, mode="vector")[0].doc_id == "docs/a.md", "the table remembers its embedder"
    assert late_project.refresh().switched_to == "search_3"


@pytest.mark.parametrize(
    "others",
    [{"model": "hashing"}, {"model": "small", "base_url": "http://localhost:1/v1"}],
    ids=["hashing", "API"],
)
def test_an_embedder_that_cannot_do_it_is_refused_naming_one_that_can(project: Project, others: dict[str, str]) -> None:
    project.write_settings(embedding={**others, "late_chunking": True})
    with pytest.raises(
        SettingsError, match=rf"embedding\.late_chunking: '{others['model']}'.*only multilingual-e5-small"
    ):
        load_settings(project.environment)


def test_other_vectors_have_another_identity_and_ordinary_ones_keep_theirs(late_project: Project) -> None:
    late = open_embedder(late_project.settings.embedding)
    assert late.fingerprint != E5Embedder.fingerprint
    assert (late.tokenizer, late.window_tokens) == (E5Embedder.tokenizer, E5Embedder.window_tokens)
    assert "graph-v1:" in E5Embedder.fingerprint


def test_no_window_reaches_over_what_is_not_indexed() -> None:
    image = "data:image/png;base64," + "iVBORw0KGgo" * 60
    text = f"# T\n\nOne sentence here.\n\n![plan]({image})\n\nAnother sentence there.\n"
    count = HashingEmbedder().count_tokens
    chunks = split(text, markdown=True, limit=SizeLimit(100, 100, count))
    assert len(chunks) == 2
    assert [text[start:end] for start, end in chunk_windows(text, chunks, 4_000, count)] == [
        chunk.text for chunk in chunks
    ]
