"""Upkeep by thresholds, and doctor: each finding names its remedy, and the remedy works."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ctx_pipeline.doctor import diagnose, fix
from ctx_pipeline.index.ledger import Ledger
from ctx_pipeline.index.maintenance import maintain, table_bytes, unindexed_rows
from tests.project import Project

TEXT = "# Guía\n\nIntro.\n\n## Uno\n\nPrimera parte.\n\n## Dos\n\nSegunda parte.\n"


def test_rewriting_every_document_leaves_a_table_at_most_twice_the_size_of_a_fresh_one(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ctx_pipeline.index.maintenance.DEAD_BYTES_MIN", 100_000)

    def write(round_: int) -> None:
        for n in range(120):
            project.write(f"d{n}.md", f"# D{n}\n\n" + f"Round {round_} words {n}. " * 60)

    project.write_settings(storage={"retention": 0})
    write(0)
    project.refresh()
    for round_ in (1, 2, 3):
        write(round_)
        project.refresh()
    fresh = Project(tmp_path / "fresh", storage={"retention": 0, "uri": str(tmp_path / "fresh" / "index")})
    for path in project.docs.iterdir():
        fresh.write(path.name, path.read_bytes())
    fresh.refresh()
    for name in ("documents", "chunks", "contexts", "search_1"):
        assert table_bytes(project.pipeline().store, name) <= 2 * table_bytes(fresh.pipeline().store, name), name


def test_new_rows_are_covered_by_the_indexes_once_they_are_many(project: Project) -> None:
    project.write("a.md", TEXT)
    project.refresh()
    for n in range(60):
        project.write(f"d{n}.md", TEXT.replace("Guía", f"Guía {n}"))
    summary = project.refresh()
    assert {upkeep.table: upkeep.reason for upkeep in summary.upkeep} == {"search_1": "180 unindexed rows"}
    assert unindexed_rows(project.pipeline().store.table("search_1")) == 0


def test_many_small_commits_are_compacted(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctx_pipeline.index.maintenance.OLD_VERSIONS", 24)
    project.write_settings(storage={"retention": 0})
    reasons = []
    for n in range(20):
        project.write("a.md", TEXT + str(n))
        reasons += [upkeep.table for upkeep in project.refresh().upkeep]
    assert "ledger" in reasons
    store = project.pipeline().store
    assert len(store.table("ledger").list_versions()) < 24


def test_forced_upkeep_reports_bytes(project: Project) -> None:
    project.write("a.md", TEXT)
    project.refresh()
    done = maintain(project.pipeline().store, ["search_1"], 10, force=True)
    assert {upkeep.table for upkeep in done} == {"chunks", "contexts", "documents", "ledger", "search_1", "state"}
    assert all(upkeep.bytes_before > 0 for upkeep in done)


def damage_orphan(project: Project) -> None:
    ledger = Ledger.read(project.pipeline().store)
    ledger.remove(["docs/b.md"])


def damage_mixed(project: Project) -> None:
    project.pipeline().store.table("search_1").update(where="chunk_id = 'docs/a.md#00001'", values={"version": "old"})


def damage_missing_chunk(project: Project) -> None:
    project.pipeline().store.table("chunks").delete("chunk_id = 'docs/a.md#00000'")


def damage_duplicate(project: Project) -> None:
    table = project.pipeline().store.table("search_1")
    table.add(table.search().where("chunk_id = 'docs/a.md#00000'").to_arrow())


def damage_hash(project: Project) -> None:
    project.pipeline().store.table("search_1").update(where="doc_id = 'docs/a.md'", values={"content_hash": "other"})


def damage_index(project: Project) -> None:
    table = project.pipeline().store.table("search_1")
    for index in table.list_indices():
        table.drop_index(index.name)


def damage_lost_table(project: Project) -> None:
    project.pipeline().store.drop("contexts")


def damage_data_files(project: Project) -> None:
    for path in (project.root / "index" / "search_1.lance" / "data").iterdir():
        path.unlink()


def damage_mark(project: Project) -> None:
    ledger = Ledger.read(project.pipeline().store)
    ledger.put([replace(ledger.rows["docs/a.md"], writing="a killed run")])


@pytest.mark.parametrize(
    ("damage", "check"),
    [
        (damage_orphan, "rows"), (damage_mixed, "rows"), (damage_missing_chunk, "rows"), (damage_duplicate, "ids"),
        (damage_hash, "hashes"), (damage_index, "full text"), (damage_lost_table, "storage"),
        (damage_data_files, "storage"), (damage_mark, "ledger"),
    ],
)  # fmt: skip
def test_damage_is_found_named_and_mended(damage, check: str, project: Project) -> None:
    project.write("a.md", TEXT)
    project.write("b.md", TEXT.replace("Guía", "Otra"))
    project.refresh()
    rows = project.search_rows()
    assert diagnose(project.pipeline(), None) == []
    damage(project)
    findings = diagnose(project.pipeline(), None)
    assert check in {finding.check for finding in findings}
    assert all("ctx-pipeline" in finding.remedy for finding in findings)
    fix(project.pipeline())
    project.refresh()
    assert diagnose(project.pipeline(), None) == []
    assert project.search_rows() == rows


def test_partition_keys_are_compared_with_the_ledger(project: Project) -> None:
    project.write("a.md", TEXT)
    project.refresh()
    findings = diagnose(project.pipeline(), lambda: {"docs/stale.md"})
    assert [finding.message for finding in findings] == [
        "1 document without a partition key",
        "1 partition key without a document, such as docs/stale.md",
    ]


# One-line edits ---------------------------------------------------------------------------------------------------


def edited(project: Project, times: int) -> list[str]:
    """Tables that were optimized by refreshes after one line was added to one document, each."""
    done = []
    for edit in range(times):
        path = project.docs / f"d{edit}.md"
        path.write_text(path.read_text() + f"\nUna línea más, la {edit}.\n")
        done += [upkeep.table for upkeep in project.refresh().upkeep]
    return done


@pytest.fixture
def many(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Documents enough for a threshold that is low, so that the test need not write megabytes."""
    monkeypatch.setattr("ctx_pipeline.index.maintenance.DEAD_BYTES_MIN", 20_000)
    for n in range(40):
        project.write(f"d{n}.md", TEXT.replace("Guía", f"Guía {n}") + f"Texto {n}. " * 50)
    return project


def test_a_one_line_edit_rewrites_no_table_while_old_versions_may_be_read(many: Project) -> None:
    many.write_settings(storage={"retention": 3_600})
    many.refresh()
    assert edited(many, 6) == []


def test_what_an_upkeep_could_not_free_starts_no_other(many: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctx_pipeline.index.maintenance.DEAD_BYTES_MIN", 1_000_000)
    many.write_settings(storage={"retention": 0})
    many.refresh()
    stray = many.root / "index" / "chunks.lance" / "data" / f"{'0' * 50}.lance"  # of a write that was killed
    stray.write_bytes(bytes(2_000_000))
    assert edited(many, 6).count("chunks") == 1
    assert stray.exists()


def test_old_versions_are_removed_once_they_may_be(many: Project) -> None:
    many.write_settings(storage={"retention": 3_600})
    many.refresh()
    edited(many, 6)
    before = {name: len(many.pipeline().store.table(name).list_versions()) for name in ("chunks", "ledger")}
    many.write_settings(storage={"retention": 0})
    assert {"chunks", "ledger"} <= set(edited(many, 1))
    for name, versions in before.items():
        assert len(many.pipeline().store.table(name).list_versions()) < versions
