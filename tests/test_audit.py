"""Rows against the ledger: each way in which a document's rows can be wrong is seen, and from which stage on."""

from __future__ import annotations

import pytest

from ctx_pipeline.index.audit import audit, quick_damage
from ctx_pipeline.index.ledger import Ledger
from ctx_pipeline.index.plan import Damage
from ctx_pipeline.index.tables import Store
from ctx_pipeline.index.versions import Stage
from tests.project import Project

TEXT = "# Guía\n\nIntro.\n\n## Uno\n\nPrimera parte.\n\n## Dos\n\nSegunda parte.\n"
A, B = "docs/a.md", "docs/b.md"


@pytest.fixture
def store(project: Project) -> Store:
    for name in ("a.md", "b.md"):
        project.write(name, TEXT)
    project.refresh()
    return project.pipeline().store


def found(store: Store) -> Damage:
    return audit(store, Ledger.read(store), ["search_1"])


def test_sound_tables_have_no_damage(store: Store) -> None:
    assert store.count("chunks") == 6
    assert found(store) == Damage()


@pytest.mark.parametrize(
    ("table", "stage"), [("chunks", Stage.CHUNKS), ("contexts", Stage.CONTEXTS), ("search_1", Stage.SEARCH)]
)
@pytest.mark.parametrize(
    ("chunk", "column", "value"),
    [(2, "ordinal", "7"), (0, "ordinal", "1"), (1, "version", "'another'"), (1, "doc_id", f"'{B}'")],
    ids=["a gap", "an ordinal twice", "two versions", "the row of another document"],
)
def test_rows_that_are_as_many_as_they_should_be_and_wrong_are_damage(
    store: Store, table: str, stage: Stage, chunk: int, column: str, value: str
) -> None:
    store.table(table).update(where=f"chunk_id = '{A}#0000{chunk}'", values_sql={column: value})
    damage = found(store)
    assert damage.stages[A] == stage
    assert (B in damage.stages) == (column == "doc_id")
    assert damage.orphans == ()


def test_a_document_damaged_in_several_tables_is_redone_from_the_first_of_them(store: Store) -> None:
    for table in ("chunks", "contexts", "search_1"):
        store.delete(table, [A])
    assert found(store).stages == {A: Stage.CHUNKS}
    store.delete("documents", [A])
    assert found(store).stages == {A: Stage.DOCUMENTS}


def test_a_document_that_a_run_was_changing_is_passed_over(store: Store) -> None:
    ledger = Ledger.read(store)
    ledger.mark([A], "a killed run")
    store.delete("chunks", [A, B])
    assert found(store).stages == {B: Stage.CHUNKS}


@pytest.mark.parametrize("table", ["documents", "chunks", "contexts", "search_1"])
def test_rows_of_a_document_that_the_ledger_does_not_know_are_orphans_in_any_table(store: Store, table: str) -> None:
    Ledger.read(store).remove([A])
    for other in {"documents", "chunks", "contexts", "search_1"} - {table}:
        store.delete(other, [A])
    assert found(store) == Damage({}, (A,))
    assert quick_damage(store, Ledger.read(store), ["search_1"]).orphans == (A,)


def test_the_quick_look_sees_a_missing_row_of_any_table(store: Store) -> None:
    assert quick_damage(store, Ledger.read(store), ["search_1"]) == Damage()
    for table, stage in (("search_1", Stage.SEARCH), ("contexts", Stage.CONTEXTS), ("chunks", Stage.CHUNKS)):
        store.table(table).delete(f"chunk_id = '{A}#00001'")
        assert quick_damage(store, Ledger.read(store), ["search_1"]).stages == {A: stage}
