"""Nothing changed means nothing done; and each setting redoes its stage, what follows from it, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ctx_pipeline.index.ledger import Ledger
from tests.project import Project, age

TEXT = "# Límites\n\nIntro.\n\n## Plan Pro\n\nEl límite sube a 1.000 peticiones.\n"


def test_a_second_refresh_writes_no_table_and_logs_no_event(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(5):
        project.write(f"d{n}.md", TEXT + str(n))
    project.dagster_refresh(monkeypatch)
    versions, events = project.versions(), project.events()
    reply = json.loads(project.command("refresh", "--json").stdout)
    assert reply["run_id"] is None
    assert reply["documents"] == {"added": 0, "changed": 0, "removed": 0, "unchanged": 5, "failed": 0, "skipped": 0}
    assert reply["vectors"] == {"embedded": 0, "reused": 0}
    assert project.versions() == versions
    assert project.events() == events


def test_a_refresh_run_with_nothing_owed_changes_no_table(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write("a.md", TEXT)
    project.dagster_refresh(monkeypatch)
    versions, events = project.versions(), project.events()
    result, _ = project.dagster_refresh(monkeypatch)
    assert result.success
    assert project.versions() == versions
    assert project.events() == events


def test_nothing_owed_imports_no_dagster_and_search_neither(project: Project) -> None:
    project.write("a.md", TEXT)
    assert project.command("refresh").returncode == 0
    for arguments in (["refresh"], ["refresh", "--dry-run"], ["search", "límite"], ["status"], ["show", "a.md"]):
        code = (
            "import sys; from ctx_pipeline.cli import cli; "
            f"cli.main({arguments!r}, standalone_mode=False); "
            "sys.exit('dagster' in sys.modules)"
        )
        done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **project.environment}, check=False)
        assert done.returncode == 0, arguments


def test_touching_every_file_is_noted_once_and_not_worked_on(project: Project) -> None:
    for n in range(3):
        project.write(f"d{n}.md", TEXT + str(n))
    age(project.docs, 3600)
    project.refresh()
    before = project.versions()
    age(project.docs, 1800)
    assert project.command("refresh").stdout.count("nothing to do") == 1
    after = project.versions()
    assert {name for name in after if after[name] != before[name]} == {"ledger"}
    assert project.command("refresh").returncode == 0
    assert project.versions() == after


def test_another_ctime_of_every_file_is_noted_once_and_not_worked_on(project: Project) -> None:
    """As after a change of modes, in a copy of the volume, or with the ledger of a version that did not look at it."""
    for n in range(3):
        project.write(f"d{n}.md", TEXT + str(n))
    age(project.docs, 3600)
    project.refresh()
    ledger = Ledger.read(project.pipeline().store)
    ledger.put([replace(row, ctime_ns=None if row.doc_id.endswith("0.md") else 1) for row in ledger.rows.values()])
    before = project.versions()
    for _ in range(2):
        pipeline = project.pipeline()
        plan = pipeline.plan()
        assert (plan.owed, plan.unchanged) == (False, 3)
        pipeline.settle(plan)
    after = project.versions()
    assert {name: after[name] - before[name] for name in after if after[name] != before[name]} == {"ledger": 1}


def test_what_a_refresh_has_read_is_neither_hashed_nor_noted_again(project: Project) -> None:
    project.write("a.md", TEXT)
    project.write("bad.md", b"\x80")
    age(project.docs, 3600)
    project.refresh()
    found = project.pipeline().scan_sources(Ledger.read(project.pipeline().store))
    assert {file.content_hash for file in found[0].files.values()} == {None}
    assert project.pipeline().plan().notes == []


def test_two_documents_of_one_size_and_mtime_that_swap_their_names_are_indexed_anew(project: Project) -> None:
    first, second = project.write("a.md", "# One\n\nLa primera.\n"), project.write("b.md", "# Two\n\nLa segunda.\n")
    for path in (first, second):
        os.utime(path, ns=(10**18, 10**18))
    project.refresh()
    first.rename(project.docs / "c")
    second.rename(first)
    (project.docs / "c").rename(second)
    assert project.refresh().changed == 2
    texts = {row["doc_id"]: row["text"] for row in project.search_rows()}
    assert "segunda" in texts["docs/a.md"]
    assert "primera" in texts["docs/b.md"]


STAGES = ("raw_documents", "chunks", "contexts", "search_index")


@pytest.mark.parametrize(
    ("setting", "redone"),
    [
        ({"chunking": {"max_tokens": 64}}, STAGES[1:]),
        ({"contexts": {"method": "none"}}, STAGES[2:]),
        ({"search": {"languages": ["English"]}}, STAGES[3:]),
        ({"search": {"candidates": 20}}, ()),
        ({"search": {"rrf_k": 10}}, ()),
        ({"storage": {"retention": 99}}, ()),
        ({"schedule": {"cron": "0 4 * * *"}}, ()),
        ({"safety": {"max_delete_count": 1}}, ()),
        ({"dagster": {"max_documents_per_run": 7}}, ()),
    ],
)
def test_each_setting_redoes_its_stage_and_what_follows(
    setting: dict, redone: tuple[str, ...], project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("a.md", TEXT)
    project.write("b.md", TEXT + "more")
    project.dagster_refresh(monkeypatch)
    before = {asset: len(events) for asset, events in project.events().items()}
    project.write_settings(**setting)
    assert project.pipeline().plan().owed == bool(redone)
    result, _ = project.dagster_refresh(monkeypatch)
    assert result.success
    new = {asset: len(events) - before[asset] for asset, events in project.events().items()}
    assert new == {asset: 2 if asset in redone else 0 for asset in STAGES}
    assert not project.pipeline().plan().owed


def test_a_parser_of_another_version_reads_every_document_again(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("a.md", TEXT)
    project.dagster_refresh(monkeypatch)
    monkeypatch.setattr("ctx_pipeline.documents.parse.VERSION", 99)
    project.dagster_refresh(monkeypatch)
    assert {asset: len(events) for asset, events in project.events().items()} == dict.fromkeys(STAGES, 2)


def test_another_embedder_is_built_beside_and_reuses_contexts(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("a.md", TEXT)
    project.dagster_refresh(monkeypatch)
    monkeypatch.setattr("ctx_pipeline.embedding.hashing.HashingEmbedder.fingerprint", "another model of that window")
    result, report = project.dagster_refresh(monkeypatch)
    assert result.success
    assert report.summary is not None
    assert report.summary.switched_to == "search_2"
    assert {asset: len(events) for asset, events in project.events().items()} == {
        "raw_documents": 1, "chunks": 1, "contexts": 1, "search_index": 2,
    }  # fmt: skip


def test_a_lost_search_table_is_built_again(project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    project.write("a.md", TEXT)
    project.dagster_refresh(monkeypatch)
    rows = project.search_rows()
    project.pipeline().store.drop("search_1")
    result, _ = project.dagster_refresh(monkeypatch)
    assert result.success
    assert project.search_rows() == rows


def test_a_lost_ledger_is_made_again_and_deletes_what_is_gone_under_the_same_limits(
    project: Project,
) -> None:
    for n in range(25):
        project.write(f"d{n}.md", TEXT + str(n))
    project.refresh()
    rows = project.search_rows()
    project.pipeline().store.drop("ledger")
    summary = project.refresh()
    assert (summary.added, summary.unchanged, summary.removed, summary.embedded) == (0, 25, 0, 0)
    assert any("the ledger was made again" in warning for warning in summary.warnings)
    assert project.search_rows() == rows
    project.pipeline().store.drop("ledger")
    for path in project.docs.iterdir():
        path.unlink()
    assert project.refresh().removed == 0, "as many at once are held back"
    assert project.search_rows() == rows
    assert project.refresh(allow_mass_delete=True).removed == 25
    assert project.search_rows() == []


def test_lost_rows_are_found_by_their_number_and_restored(project: Project) -> None:
    for n in range(4):
        project.write(f"d{n}.md", TEXT + str(n))
    project.refresh()
    rows = project.search_rows()
    store = project.pipeline().store
    store.table("search_1").delete("doc_id = 'docs/d2.md'")
    store.table("chunks").delete("doc_id = 'docs/d3.md'")
    ledger = Ledger.read(store)
    ledger.mark(["docs/d1.md"], "a killed run")  # which hides nothing of the others
    assert {work.doc_id for work in project.pipeline().plan().work} == {"docs/d1.md", "docs/d2.md", "docs/d3.md"}
    project.refresh()
    assert project.search_rows() == rows
    assert not project.pipeline().plan().owed
