"""The four assets from the UI: one document, a range, a subset; the same rows and events as a refresh."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from ctx_pipeline.definitions import build_definitions
from ctx_pipeline.index.ledger import Ledger
from ctx_pipeline.index.stages import ASSETS
from tests.project import SEARCH_COLUMNS, Project

ALL = tuple(ASSETS.values())
TEXT = "# Guía\n\nIntro.\n\n## Uno\n\nPrimera parte.\n\n## Dos\n\nSegunda parte.\n"


def tables(project: Project) -> dict[str, list[dict]]:
    """All rows of the tables that a reader may look at, without the moments of reading."""
    store = project.pipeline().store
    found = {}
    for name, key in (
        ("documents", "doc_id"),
        ("chunks", "chunk_id"),
        ("contexts", "chunk_id"),
        ("search_1", "chunk_id"),
    ):
        rows = store.table(name).to_arrow().to_pylist()
        for row in rows:
            for moment in ("mtime_ns", "read_at_ns", "uri"):
                row.pop(moment, None)
        found[name] = sorted(rows, key=lambda row: row[key])
    return found


def add_key(project: Project, *keys: str) -> None:
    with project.instance() as instance:
        instance.add_dynamic_partitions("documents", list(keys))


def test_a_partitioned_run_and_a_refresh_write_the_same_tables_and_events(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Project(tmp_path / "other")
    for one in (project, other):
        for n in range(3):
            one.write(f"d{n}.md", TEXT.replace("Guía", f"Guía {n}"))
    assert project.dagster_refresh(monkeypatch)[0].success
    add_key(other, "docs/d0.md", "docs/d1.md", "docs/d2.md")
    assert other.materialize(monkeypatch, *ALL, span=("docs/d0.md", "docs/d2.md")).success
    assert tables(project) == tables(other)
    assert {asset: sorted(events) for asset, events in project.events().items()} == {
        asset: sorted(events) for asset, events in other.events().items()
    }
    assert not other.pipeline().plan().owed
    ledgers = [Ledger.read(one.pipeline().store).rows for one in (project, other)]
    assert {k: (v.content_hash, v.indexed, v.chunks, v.writing) for k, v in ledgers[0].items()} == {
        k: (v.content_hash, v.indexed, v.chunks, v.writing) for k, v in ledgers[1].items()
    }


def test_one_document_gives_one_event_per_asset(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write("a.md", TEXT)
    project.write("b.md", TEXT)
    project.dagster_refresh(monkeypatch)
    project.write("a.md", TEXT + "Más.\n")
    assert project.materialize(monkeypatch, *ALL, key="docs/a.md").success
    assert {
        asset: [p for p, _ in events].count("docs/a.md") for asset, events in project.events().items()
    } == dict.fromkeys(ALL, 2)
    assert {
        asset: [p for p, _ in events].count("docs/b.md") for asset, events in project.events().items()
    } == dict.fromkeys(ALL, 1)
    assert not project.pipeline().plan().owed


@pytest.mark.parametrize("asset", ALL)
def test_a_single_asset_can_be_materialized_again(
    asset: str, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("a.md", TEXT)
    project.dagster_refresh(monkeypatch)
    before = tables(project)
    assert project.materialize(monkeypatch, asset, key="docs/a.md").success
    assert tables(project) == before
    assert {name: len(events) for name, events in project.events().items()} == {
        name: 2 if name == asset else 1 for name in ALL
    }
    assert not project.pipeline().plan().owed


def test_a_document_that_is_only_read_stays_owed_and_searchable_as_before(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("a.md", TEXT)
    project.dagster_refresh(monkeypatch)
    rows = project.search_rows()
    project.write("a.md", TEXT + "Más.\n")
    assert project.materialize(monkeypatch, "raw_documents", key="docs/a.md").success
    assert project.search_rows() == rows
    project.write("a.md", TEXT)  # the edit is undone: the stored text is still the edited one
    assert [work.doc_id for work in project.pipeline().plan().work] == ["docs/a.md"]
    project.dagster_refresh(monkeypatch)
    assert project.search_rows() == rows
    assert project.pipeline().store.rows("documents", ["docs/a.md"])[0]["text"] == TEXT


def test_a_stage_refuses_input_of_another_version_and_says_what_to_do(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("a.md", TEXT)
    project.dagster_refresh(monkeypatch)
    rows = project.search_rows()
    project.write_settings(chunking={"max_tokens": 64})
    result = project.materialize(monkeypatch, "search_index", key="docs/a.md")
    assert not result.success
    message = failure_text(result)
    assert "materialize `chunks` first" in message
    assert project.search_rows() == rows


def failure_text(result: dg.ExecuteInProcessResult) -> str:
    event = next(event for event in result.all_events if event.is_step_failure)
    data = event.step_failure_data
    return f"{data.user_failure_data.description if data.user_failure_data else ''} {data.error}"


def test_one_bad_document_of_a_range_fails_alone(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        project.write(f"{name}.md", TEXT)
    project.dagster_refresh(monkeypatch)
    project.write("b.md", b"\x80\xfe broken")
    for name in ("a", "c"):
        project.write(f"{name}.md", TEXT + "Más.\n")
    result = project.materialize(monkeypatch, *ALL, span=("docs/a.md", "docs/c.md"))
    assert not result.success
    assert "docs/b.md" in failure_text(result)
    assert {asset: sorted(p for p, _ in events[3:]) for asset, events in project.events().items()} == {
        asset: ["docs/a.md", "docs/c.md"] for asset in ALL
    }
    hashes = {row["doc_id"]: row["content_hash"] for row in project.search_rows(("chunk_id", "doc_id", "content_hash"))}
    assert len(hashes) == 3
    assert hashes["docs/a.md"] == hashes["docs/c.md"] != hashes["docs/b.md"]


def test_a_key_without_a_document_fails_and_the_next_refresh_prunes_it(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("a.md", TEXT)
    project.dagster_refresh(monkeypatch)
    add_key(project, "docs/ghost.md")
    result = project.materialize(monkeypatch, *ALL, key="docs/ghost.md")
    assert not result.success
    assert "in no source" in failure_text(result)
    project.dagster_refresh(monkeypatch)
    assert project.keys() == {"docs/a.md"}


def test_materialize_everything_in_a_partition_leaves_the_refresh_without_work_and_event(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("a.md", TEXT)
    project.dagster_refresh(monkeypatch)
    result = project.materialize(monkeypatch, *ALL, "corpus_refresh", key="docs/a.md")
    assert result.success
    with project.instance() as instance:
        records = instance.fetch_materializations(dg.AssetKey("corpus_refresh"), limit=10).records
    assert len(records) == 1


def test_a_refresh_with_a_failed_document_logs_its_totals_then_fails_naming_it(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("good.md", TEXT)
    project.write("bad.md", b"\x80\x81")
    result, report = project.dagster_refresh(monkeypatch)
    assert not result.success
    assert "docs/bad.md: not valid UTF-8" in failure_text(result)
    assert report.summary is not None
    assert report.summary.added == 1
    with project.instance() as instance:
        (record,) = instance.fetch_materializations(dg.AssetKey("corpus_refresh"), limit=10).records
    metadata = record.asset_materialization.metadata
    assert metadata["documents_failed"].value == 1
    assert metadata["chunks_indexed"].value == len(project.search_rows())
    result, report = project.dagster_refresh(monkeypatch)  # a standing failure is no red run for ever
    assert result.success
    assert project.keys() == {"docs/good.md", "docs/bad.md"}


def test_metadata_tells_of_the_document_and_the_table(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write("a.md", TEXT + "\n```python\nx = 1\n```\n")
    project.dagster_refresh(monkeypatch)
    with project.instance() as instance:
        latest = {
            asset: instance.fetch_materializations(dg.AssetKey(asset), limit=1)
            .records[0]
            .asset_materialization.metadata
            for asset in (*ALL, "corpus_refresh")
        }
    assert latest["raw_documents"]["source"].value.endswith("/docs/a.md")
    assert latest["chunks"]["chunks"].value == 3
    assert latest["contexts"]["contexts_written"].value == 3
    assert "Guía › Uno" in latest["contexts"]["preview"].value
    assert "Primera parte." in latest["search_index"]["preview"].value
    assert latest["search_index"]["dagster/row_count"].value == 3
    assert latest["corpus_refresh"]["rows_searchable"].value == 3
    spec = build_definitions().resolve_asset_graph().get(dg.AssetKey("search_index"))
    columns = [column.name for column in spec.metadata["dagster/column_schema"].columns]
    assert columns == list(SEARCH_COLUMNS)
