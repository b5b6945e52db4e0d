"""The legs of a search: a vector index finds what an exact scan finds, and equal hits have one order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ctx_pipeline.index.fusion import add_document_ranks, ranked, reciprocal_rank_fusion
from ctx_pipeline.index.legs import Legs
from ctx_pipeline.index.maintenance import ensure_vector_index, maintain
from ctx_pipeline.index.search import Hit, SearchIndex
from tests.project import Project

K, DIMENSION = 20, 16


def alike_and_others(seed: int = 7) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Vectors of which most differ a little, as those of one topic do, and queries among them: quantized, they are
    hardly told apart."""
    random = np.random.default_rng(seed)
    topic = random.normal(size=DIMENSION)
    topic /= np.linalg.norm(topic)
    alike = topic + 0.01 * random.normal(size=(2_000, DIMENSION))
    vectors = np.concatenate([alike, random.normal(size=(20, DIMENSION))])
    queries = topic + 0.01 * random.normal(size=(30, DIMENSION))
    return vectors.astype(np.float32), queries.astype(np.float32)


def table_of(vectors: NDArray[np.float32], folder: Path) -> Any:
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIMENSION)
    ids = [f"docs/a.md#{number:05d}" for number in range(len(vectors))]
    return lancedb.connect(str(folder)).create_table("t", data=pa.table({"chunk_id": ids, "vector": column}))


def test_a_vector_index_finds_what_an_exact_scan_finds(tmp_path: Path) -> None:
    vectors, queries = alike_and_others()
    table = table_of(vectors, tmp_path)
    exact = [Legs(table, K, None).vector(query) for query in queries]
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    nearest = np.argsort(-(unit @ queries[0]).astype(np.float64))[:K]
    assert len(set(exact[0]) & {f"docs/a.md#{number:05d}" for number in nearest}) >= K - 1, "but for rounding"
    assert ensure_vector_index(table, min_rows=1_000)
    found = [Legs(table, K, None).vector(query) for query in queries]
    recall = sum(len(set(one) & set(other)) for one, other in zip(exact, found, strict=True)) / (K * len(queries))
    assert recall >= 0.97


# Equal hits ----------------------------------------------------------------------------------------------------------

SAME = "# Límites\n\nEl plan Pro permite mil peticiones por minuto.\n"
NAMES = ["n5.md", "n2.md", "n4.md", "n1.md", "n6.md", "n3.md"]


def covered(project: Project) -> None:
    """Rows that no full-text index covers yet are scored on a scale of their own."""
    store = project.pipeline().store
    maintain(store, list(store.search_tables()), 0, force=True)


def hits(project: Project, mode: Any) -> list[Hit]:
    return SearchIndex.open(project.settings.storage.uri, project.settings).search("peticiones del plan", mode=mode)


@pytest.mark.parametrize("mode", ["hybrid", "vector", "keyword"])
def test_equal_hits_have_one_order_whatever_was_indexed_first(mode: str, project: Project, tmp_path: Path) -> None:
    for name in NAMES:
        project.write(name, SAME)
        project.refresh()
    project.write("n1.md", "# Otro\n\nNada.\n")
    project.refresh()
    project.write("n1.md", SAME)
    project.refresh()
    covered(project)
    fresh = Project(tmp_path / "fresh")
    for name in NAMES:
        fresh.write(name, SAME)
    fresh.refresh()
    expected = [f"docs/{name}#00000" for name in sorted(NAMES)]
    assert [hit.chunk_id for hit in hits(project, mode)] == [hit.chunk_id for hit in hits(fresh, mode)] == expected


def test_the_first_of_many_equal_hits_are_the_first_by_name(project: Project) -> None:
    for name in NAMES:
        project.write(name, SAME)
        project.refresh()
    covered(project)
    index = SearchIndex.open(project.settings.storage.uri, project.settings)
    assert [hit.doc_id for hit in index.search("peticiones del plan", k=2)] == ["docs/n1.md", "docs/n2.md"]


@given(st.permutations([f"docs/{name}#0000{at}" for name in NAMES for at in range(2)]))
def test_fused_equals_come_by_name(items: list[str]) -> None:
    scores = dict.fromkeys(items, 0.5)
    assert ranked(scores) == sorted(items)
    with_documents = add_document_ranks(scores, lambda item: item.partition("#")[0], 0.5, 60)
    assert ranked(with_documents) == sorted(items), "documents that are equal too"


def test_ranks_of_two_legs_add_up() -> None:
    scores = reciprocal_rank_fusion([(["a", "b"], 1.0), (["b", "c"], 0.5), (["z"], 0.0)], 60)
    assert scores == pytest.approx({"a": 1 / 61, "b": 1 / 62 + 0.5 / 61, "c": 0.5 / 62})


def test_a_document_counts_by_its_best_item() -> None:
    scores = {"a#1": 0.9, "b#1": 0.8, "a#2": 0.1}
    added = add_document_ranks(scores, lambda item: item[0], 2.0, 10)
    assert added == pytest.approx({"a#1": 0.9 + 2 / 11, "b#1": 0.8 + 2 / 12, "a#2": 0.1 + 2 / 11})


@pytest.mark.parametrize("mode", ["hybrid", "vector", "keyword"])
def test_as_many_hits_come_as_are_asked_for_whatever_the_number_of_candidates(mode: Any, project: Project) -> None:
    for number in range(30):
        project.write(f"d{number:02}.md", f"# Plan {number}\n\nPeticiones del plan {number}.\n")
    project.write_settings(search={"candidates": 20})
    project.refresh()
    index = SearchIndex.open(project.settings.storage.uri, project.settings)
    assert len(index.search("peticiones del plan", k=30, mode=mode)) == 30
    assert len(index.search("peticiones del plan", k=3, mode=mode)) == 3
