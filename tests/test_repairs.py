"""A repair destroys nothing that might be good, and what only cannot be read now is no damage."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ctx_pipeline.contexts.memo import Memo
from ctx_pipeline.doctor import Finding, diagnose, fix
from ctx_pipeline.doctor.comparison import Comparison, compare
from ctx_pipeline.errors import SettingsError, StorageError
from ctx_pipeline.index import table_health
from ctx_pipeline.index.folders import ASIDE
from ctx_pipeline.index.ledger import Ledger
from ctx_pipeline.index.lock import storage_lock
from ctx_pipeline.index.maintenance import ensure_vector_index, maintain
from ctx_pipeline.index.schemas import MEMO
from ctx_pipeline.index.search import SearchIndex
from ctx_pipeline.index.tables import Store
from ctx_pipeline.refresh import Pipeline
from tests import index_faults
from tests.emulators.messages import KEY, MessagesEmulator
from tests.index_faults import FILE_FAULTS, content, data_files, newest_manifest, table, without_manifests, zeroed
from tests.project import Project

TEXT = "# Guía {0}\n\nIntro.\n\n## Uno\n\nPrimera parte de {0}.\n\n## Dos\n\nSegunda parte de {0}.\n"
ROWS = ("documents", "chunks", "contexts", "search_1")


@pytest.fixture
def indexed(project: Project) -> Project:
    """Three documents, one of them edited since, so that every table has older versions."""
    project.write_settings(storage={"retention": 3_600}, safety={"max_delete_count": 0, "max_delete_share": 0.5})
    for name in "abc":
        project.write(f"{name}.md", TEXT.format(name))
    project.refresh()
    project.write("a.md", TEXT.format("a") + "\nUna línea más.\n")
    project.refresh()
    return project


@pytest.fixture
def paid(project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Project, MessagesEmulator]]:
    """Two documents whose contexts an emulated model wrote, each in a refresh of its own."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    project.write_settings(contexts={"method": "claude"}, chunking={"max_tokens": 96}, storage={"retention": 3_600})
    with MessagesEmulator() as api:
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", api.url)
        for name in "ab":
            project.write(f"{name}.md", TEXT.format(f"{name} {'larga y detallada ' * 30}"))
            project.refresh()
        yield project, api


def index(project: Project) -> Path:
    return project.root / "index"


def found(project: Project) -> list[Finding]:
    return diagnose(project.pipeline(), None)


def texts(findings: list[Finding]) -> str:
    return "\n".join(f"{finding.check}: {finding.message}" for finding in findings)


def take_away(project: Project) -> Path:
    return project.docs.rename(project.root / "elsewhere")


# Damage and what only cannot be read now ------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*ROWS, "ledger", "state"])
@pytest.mark.parametrize("breaking", FILE_FAULTS)
def test_a_damaged_data_file_is_found_and_mended_without_the_source(
    breaking: Callable[[Path], None], name: str, indexed: Project
) -> None:
    documents, rows = indexed.documents(), indexed.search_rows()
    breaking(data_files(index(indexed), name)[0])
    kept = content(table(index(indexed), name))
    assert "storage" in {finding.check for finding in found(indexed)}
    away = take_away(indexed)
    told = fix(indexed.pipeline())
    assert any(str(index(indexed) / ASIDE) in line for line in told)
    aside = [content(folder) for folder in (index(indexed) / ASIDE).iterdir()]
    assert kept in aside, "the files as they were found are kept"
    try:
        assert indexed.refresh().removed == 0
    except SettingsError:
        assert name == "ledger"
    if name != "documents":
        assert indexed.documents() == documents
    away.rename(indexed.docs)
    indexed.refresh()
    assert indexed.search_rows() == rows
    assert found(indexed) == []


@pytest.mark.parametrize("breaking", [*FILE_FAULTS[1:4], "all gone"])
@pytest.mark.parametrize("name", ["documents", "ledger", "search_1", "state"])
def test_a_manifest_that_is_lost_or_zeroed_is_damage_too(
    breaking: Callable[[Path], None] | str, name: str, indexed: Project
) -> None:
    rows = indexed.search_rows()
    if isinstance(breaking, str):
        without_manifests(index(indexed), name)
    else:
        breaking(newest_manifest(index(indexed), name))
    before = {path.name: path.read_bytes() for path in data_files(index(indexed), name)}
    assert any(f"table {name} is damaged" in finding.message for finding in found(indexed))
    fix(indexed.pipeline())
    now = {path.name: path.read_bytes() for path in index(indexed).rglob("data/*")}
    assert before.items() <= now.items()
    indexed.refresh()
    assert indexed.search_rows() == rows
    assert found(indexed) == []


def test_the_newest_manifest_gone_is_noticed_by_the_version_noted_beside_it(indexed: Project) -> None:
    newest_manifest(index(indexed), "chunks").unlink()
    assert "the manifest of its newest version" in texts(found(indexed))
    fix(indexed.pipeline())
    indexed.refresh()
    assert found(indexed) == []


def test_rows_of_sound_files_stay_where_no_older_version_can_be_read(indexed: Project) -> None:
    rows = indexed.search_rows()
    documents = indexed.documents()
    broken = data_files(index(indexed), "search_1")[0]  # of the first refresh: every version has it
    zeroed(broken)
    take_away(indexed)
    [line] = [line for line in fix(indexed.pipeline()) if line.startswith("table search_1")]
    assert "without 6 rows" in line
    assert indexed.documents() == {"docs/a.md"}
    indexed.refresh()
    assert indexed.documents() == documents, "the others follow from the stored documents"
    assert [row["text"] for row in indexed.search_rows()] == [row["text"] for row in rows]


def test_rows_of_newer_sound_files_go_before_those_of_an_older_version(indexed: Project) -> None:
    [second] = {*data_files(index(indexed), "search_1")} - {data_files(index(indexed), "search_1")[0]}
    indexed.write("b.md", TEXT.format("b") + "\nUna línea nueva.\n")
    indexed.refresh()
    rows = indexed.search_rows()
    zeroed(second)  # of the edit before
    fix(indexed.pipeline())
    now = indexed.search_rows()
    assert [row for row in now if row["doc_id"] != "docs/a.md"] == [r for r in rows if r["doc_id"] != "docs/a.md"]
    assert {row["doc_id"] for row in now} == {"docs/a.md", "docs/b.md", "docs/c.md"}
    indexed.refresh()
    assert indexed.search_rows() == rows


REFUSALS = [
    RuntimeError("lance error: LanceError(IO): Permission denied (os error 13), /x/local.rs:274:24"),
    RuntimeError("lance error: LanceError(IO): Generic LocalFileSystem error: Too many open files (os error 24)"),
    RuntimeError("lance error: LanceError(IO): Input/output error (os error 5)"),
    OSError(116, "Stale file handle"),
    MemoryError(),
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda error: str(error)[-40:] or "memory")
@pytest.mark.parametrize("name", ["chunks", MEMO])
def test_what_the_machine_refuses_to_read_is_left_as_it_is(
    refusal: Exception, name: str, indexed: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == MEMO:
        indexed.pipeline().store.connect().create_table(MEMO, data=[{"memo_key": "a"}])
    read = table_health.read_all

    def refuse(opened: object) -> None:
        if getattr(opened, "name", "") == name:
            raise refusal
        read(opened)

    monkeypatch.setattr(table_health, "read_all", refuse)
    before = content(index(indexed))
    [finding] = [finding for finding in found(indexed) if finding.check == "storage"]
    assert "cannot be read now" in finding.message and "--fix" not in finding.remedy
    [line] = fix(indexed.pipeline(), give_up_memo=True)
    assert "nothing repaired" in line
    assert content(index(indexed)) == before


def test_a_file_that_python_may_not_read_either_is_no_damage(indexed: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    zeroed(data_files(index(indexed), "chunks")[0])

    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(table_health, "_is_broken", refuse)
    assert "cannot be read now: Permission denied" in texts(found(indexed))
    assert "nothing repaired" in fix(indexed.pipeline())[0]


WITHOUT_PRIVILEGES = """
import ctypes
# Root may read what it has no permission for; a process without capabilities may not.
header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
ctypes.CDLL(None).capset(header, none)
from ctx_pipeline.cli import main
main()
"""


@pytest.mark.parametrize("closed", ["index/chunks.lance/data", "index/chunks.lance/_versions", "index/memo.lance"])
def test_a_folder_without_permission_survives_doctor_and_refresh(closed: str, indexed: Project) -> None:
    indexed.pipeline().store.connect().create_table(MEMO, data=[{"memo_key": "a"}])
    indexed.write("new.md", TEXT.format("new"))
    before = content(index(indexed))
    folder = indexed.root / closed
    folder.chmod(0)
    try:
        for arguments in (["doctor", "--fix"], ["refresh"], ["doctor", "--fix", "--give-up-memo"]):
            done = subprocess.run(
                [sys.executable, "-c", WITHOUT_PRIVILEGES, *arguments],
                env={**os.environ, **indexed.environment}, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert "Traceback" not in done.stderr
            assert done.returncode == 1
            assert "cannot be read" in done.stdout + done.stderr
    finally:
        folder.chmod(0o700)
    after = content(index(indexed))
    assert before.keys() <= after.keys(), "nothing is gone"
    assert not (index(indexed) / ASIDE).exists(), "nothing was moved"
    assert all(after[name] == before[name] for name in before if name.startswith(closed.split("/")[1]))
    assert indexed.refresh().failures == {}
    assert found(indexed) == []


# The memo --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("breaking", ["data", "manifest", "manifests"])
def test_a_damaged_memo_is_given_up_only_by_an_explicit_word(
    breaking: str, paid: tuple[Project, MessagesEmulator]
) -> None:
    project, api = paid
    folder = table(index(project), MEMO)
    maintain(project.pipeline().store, ["search_1"], 0, force=True)  # one file holds all
    if breaking == "data":
        zeroed(data_files(index(project), MEMO)[0])
    elif breaking == "manifest":
        zeroed(newest_manifest(index(project), MEMO))
    else:
        without_manifests(index(project), MEMO)
    before, asked = content(folder), len(api.bill.entries)
    [finding] = found(project)
    assert "the memo of paid contexts is damaged" in finding.message and "--give-up-memo" in finding.remedy
    assert any("left as it is" in line and "--give-up-memo" in line for line in fix(project.pipeline()))
    project.write("c.md", TEXT.format("c " + "nueva y detallada " * 30))
    with pytest.raises(StorageError, match="doctor"):
        project.refresh()
    assert (content(folder), len(api.bill.entries)) == (before, asked), "neither touched nor paid around"
    project.write_settings(contexts={"method": "outline"})
    assert project.refresh().failures == {}, "a method that is free needs no memo"
    assert content(folder) == before
    project.write_settings(contexts={"method": "claude"})
    told = fix(project.pipeline(), give_up_memo=True)
    assert any("memo" in line and str(index(project) / ASIDE) in line for line in told)
    project.refresh()
    assert found(project) == []


def test_a_memo_of_which_every_row_can_be_read_is_mended_without_a_word(
    paid: tuple[Project, MessagesEmulator],
) -> None:
    project, api = paid
    store = project.pipeline().store
    rows, asked = store.count(MEMO), len(api.bill.entries)
    maintain(store, ["search_1"], 3_600, force=True)  # one new file; an older version has the rows in others
    newest = max(data_files(index(project), MEMO), key=lambda path: path.stat().st_mtime_ns)
    newest.unlink()
    fix(project.pipeline())
    assert project.pipeline().store.count(MEMO) == rows
    assert found(project) == []
    (project.docs / "a.md").rename(project.docs / "other.md")
    project.refresh()
    assert len(api.bill.entries) == asked


def test_a_kill_while_the_memo_is_made_leaves_nothing_that_looks_like_a_lost_one(indexed: Project) -> None:
    (table(index(indexed), MEMO) / "_transactions").mkdir(parents=True)
    assert found(indexed) == []
    assert Memo(indexed.pipeline().store).find(["a"]) == {}
    indexed.pipeline().store.create()
    assert not table(index(indexed), MEMO).exists()


# The ledger, the state, and rows that nobody knows --------------------------------------------------------------


def test_a_lost_ledger_is_made_again_and_nothing_is_indexed_or_deleted(indexed: Project) -> None:
    ledger, rows = Ledger.read(indexed.pipeline().store).rows, indexed.search_rows()
    shutil.rmtree(table(index(indexed), "ledger"))
    take_away(indexed)
    assert "the ledger is missing" in texts(found(indexed))
    fix(indexed.pipeline())
    again = Ledger.read(indexed.pipeline().store).rows
    told = ("content_hash", "size", "mtime_ns", "read_at_ns", "parse", "chunk", "context", "chunks", "tokens",
            "context_counts", "indexed", "writing", "failure", "settings")  # fmt: skip
    for doc_id, row in ledger.items():
        assert [getattr(again[doc_id], name) for name in told] == [getattr(row, name) for name in told]
    assert indexed.refresh().removed == 0
    (indexed.root / "elsewhere").rename(indexed.docs)
    plan = indexed.pipeline().plan()
    assert (plan.owed, plan.unchanged) == (False, 3)
    assert indexed.search_rows() == rows


def test_documents_whose_tables_disagree_are_indexed_again_after_a_lost_ledger(indexed: Project) -> None:
    rows, store = indexed.search_rows(), indexed.pipeline().store
    store.table("chunks").delete("chunk_id = 'docs/b.md#00001'")
    store.table("chunks").update(where="chunk_id = 'docs/a.md#00001'", values={"version": "another"})
    store.table("search_1").update(where="doc_id = 'docs/c.md'", values={"version": "another"})
    store.drop("ledger")
    fix(indexed.pipeline())
    plan = indexed.pipeline().plan()
    assert {work.doc_id: work.stage.name for work in plan.work} == {
        "docs/a.md": "DOCUMENTS", "docs/b.md": "DOCUMENTS", "docs/c.md": "SEARCH",
    }  # fmt: skip
    indexed.refresh()
    assert indexed.search_rows() == rows
    assert found(indexed) == []


def test_a_lost_state_keeps_what_auto_stands_for(indexed: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    indexed.write_settings(contexts={"method": "auto"})
    indexed.refresh()
    rows = indexed.search_rows()
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)  # with which `auto` would now be a method that is paid for
    shutil.rmtree(table(index(indexed), "state"))
    with pytest.raises(StorageError, match="doctor --fix"):
        indexed.refresh()
    fix(indexed.pipeline())
    assert indexed.pipeline().contextualizer.method == "outline"
    assert not indexed.pipeline().plan().owed
    assert indexed.search_rows() == rows


def test_rows_that_the_ledger_does_not_know_go_only_where_a_refresh_would_delete_them(indexed: Project) -> None:
    documents = indexed.documents()
    Ledger.read(indexed.pipeline().store).remove(["docs/b.md"])
    away = take_away(indexed)
    assert any("1 unknown document kept" in line for line in fix(indexed.pipeline()))
    indexed.docs.mkdir()  # a root that is empty: more than the limits let pass
    assert any("1 unknown document kept" in line for line in fix(indexed.pipeline()))
    assert indexed.documents() == documents
    indexed.docs.rmdir()
    away.rename(indexed.docs)
    (indexed.docs / "b.md").unlink()
    assert any("1 unknown document deleted" in line for line in fix(indexed.pipeline()))
    assert indexed.documents() == documents - {"docs/b.md"}


def test_creating_what_is_missing_moves_a_folder_with_data_aside(indexed: Project) -> None:
    without_manifests(index(indexed), "contexts")
    (index(indexed) / "chunks_leftover.lance" / "data").mkdir(parents=True)
    data = {path.name for path in data_files(index(indexed), "contexts")}
    summary = indexed.refresh()
    assert any("contexts has lost its manifests" in warning for warning in summary.warnings)
    assert {path.name for path in (index(indexed) / ASIDE).rglob("data/*")} == data
    assert not (index(indexed) / "chunks_leftover.lance").exists()
    assert found(indexed) == []


# Indexes and stored text -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("breaking", FILE_FAULTS)
@pytest.mark.parametrize("part", ["part_0_invert", "part_0_docs", "part_0_tokens", "metadata"])
def test_a_damaged_index_file_is_found_by_a_query_and_made_again(
    part: str, breaking: Callable[[Path], None], indexed: Project
) -> None:
    rows = indexed.search_rows()
    for path in index_faults.index_files(index(indexed), "search_1"):
        if path.stem == part:
            breaking(path)
    assert {finding.check for finding in found(indexed)} == {"indexes"}
    fix(indexed.pipeline())
    assert found(indexed) == []
    assert indexed.search_rows() == rows
    assert SearchIndex(Store(index(indexed)), indexed.settings).search("segunda parte", mode="keyword")


@pytest.mark.parametrize("breaking", FILE_FAULTS[:4])
def test_a_damaged_vector_index_is_found_and_taken_away(breaking: Callable[[Path], None], indexed: Project) -> None:
    for number in range(100):
        indexed.write(f"more/{number}.md", TEXT.format(number))
    indexed.refresh()
    store = indexed.pipeline().store
    assert ensure_vector_index(store.table("search_1"), min_rows=1)
    [uuid] = [i.index_uuid for i in store.table("search_1").list_indices() if i.columns == ["vector"]]
    assert found(indexed) == []
    for path in (table(index(indexed), "search_1") / "_indices" / str(uuid)).iterdir():
        breaking(path)
    assert "the index of search_1 on vector is damaged" in texts(found(indexed))
    fix(indexed.pipeline())
    assert found(indexed) == [], "below its threshold a table needs none"
    assert SearchIndex(Store(index(indexed)), indexed.settings).search("segunda parte", mode="vector")


def test_one_broken_leg_is_a_warning_and_the_other_answers(indexed: Project) -> None:
    search = SearchIndex(Store(index(indexed)), indexed.settings)
    sound = search.search_with_warnings("segunda parte de b", 3)
    shutil.rmtree(table(index(indexed), "search_1") / "_indices")
    search = SearchIndex(Store(index(indexed)), indexed.settings)
    result = search.search_with_warnings("segunda parte de b", 3)
    assert result.hits and sound.warnings == []
    assert all(hit.keyword_rank is None for hit in result.hits)
    assert "doctor --fix" in result.warnings[0] and "text_" in result.warnings[0]
    with pytest.raises(StorageError, match="doctor"):
        search.search("segunda parte de b", mode="keyword")


def test_a_stored_text_that_was_altered_is_found_and_read_again(indexed: Project) -> None:
    store, rows = indexed.pipeline().store, indexed.search_rows()
    store.table("documents").update(where="doc_id = 'docs/b.md'", values={"text": "# Otra cosa\n"})
    store.table("chunks").update(where="chunk_id = 'docs/c.md#00001'", values={"text": "otra cosa"})
    store.table("search_1").update(where="chunk_id = 'docs/a.md#00000'", values={"text": "otra cosa"})
    message = texts(found(indexed))
    assert "1 document whose stored text was altered, such as docs/b.md" in message
    assert "with chunks in chunks that are not what stands in their text, such as docs/c.md" in message
    assert "with chunks in search_1 that are not what stands in their text, such as docs/a.md" in message
    fix(indexed.pipeline())
    stages = {work.doc_id: work.stage.name for work in indexed.pipeline().plan().work}
    assert stages == {"docs/a.md": "SEARCH", "docs/b.md": "DOCUMENTS", "docs/c.md": "CHUNKS"}
    indexed.refresh()
    assert indexed.search_rows() == rows
    assert found(indexed) == []


# Beside a refresh ------------------------------------------------------------------------------------------------


def test_what_a_refresh_is_changing_is_no_finding(indexed: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    store = indexed.pipeline().store

    def change(*doc_ids: str) -> None:
        """What a refresh has done of a batch between two of its commits."""
        ledger = Ledger.read(store)
        ledger.put([replace(ledger.rows[doc_id], writing="the refresh 123") for doc_id in doc_ids])
        for doc_id in doc_ids:
            store.table("chunks").delete(f"doc_id = '{doc_id}'")

    def compare_late(pipeline: Pipeline, ledger: Ledger) -> Comparison:
        change("docs/b.md")  # which the ledger that was read does not tell of
        return compare(pipeline, ledger)

    with storage_lock(index(indexed), "the refresh 123"):
        change("docs/a.md")
        indexed.write("new.md", TEXT.format("new"))
        with monkeypatch.context() as patched:
            patched.setattr("ctx_pipeline.doctor.findings.compare", compare_late)
            [note] = diagnose(indexed.pipeline(), lambda: {"docs/new.md"})
        assert note.severity == "note" and "the refresh 123" in note.message
        assert indexed.command("doctor").returncode == 0
        store.table("chunks").delete("doc_id = 'docs/c.md'")
        assert "1 document with rows missing" in texts(found(indexed)), "what nobody is changing is told as ever"
    assert "2 documents interrupted" in texts(found(indexed))


# Dagster's storage -----------------------------------------------------------------------------------------------


def events(project: Project) -> Path:
    return project.root / "dagster_home" / "history" / "runs" / "index.db"


def test_a_broken_dagster_database_is_one_finding_with_its_remedy(indexed: Project) -> None:
    indexed.command("doctor", "--fix")
    zeroed(events(indexed))
    done = indexed.command("doctor", "--json")
    [finding] = json.loads(done.stdout)
    assert (done.returncode, finding["check"], "Traceback" in done.stderr) == (1, "dagster", False)
    assert str(events(indexed)) in finding["remedy"]
    fixed = indexed.command("doctor", "--fix")
    assert (fixed.returncode, "Traceback" in fixed.stderr) == (1, False)
    indexed.write("new.md", TEXT.format("new"))
    refused = indexed.command("refresh")
    assert (refused.returncode, "Traceback" in refused.stderr, "move it away" in refused.stderr) == (1, False, True)
    events(indexed).unlink()
    assert indexed.command("refresh").returncode == 0
    assert indexed.keys() == indexed.keys_of_ledger() == {f"docs/{name}.md" for name in ("a", "b", "c", "new")}


def test_a_locked_dagster_database_is_one_finding(indexed: Project) -> None:
    indexed.command("doctor", "--fix")
    connection = sqlite3.connect(events(indexed), isolation_level=None)
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("BEGIN EXCLUSIVE")
    try:
        done = indexed.command("doctor", "--json")
    finally:
        connection.close()
    [finding] = json.loads(done.stdout)
    assert (finding["check"], "locked" in finding["message"]) == ("dagster", True)
    assert "wait for it" in finding["remedy"]


def test_a_refresh_with_nothing_owed_restores_the_keys_of_a_lost_history(indexed: Project) -> None:
    assert indexed.command("refresh").returncode == 0
    assert indexed.keys() == {"docs/a.md", "docs/b.md", "docs/c.md"}
    shutil.rmtree(indexed.root / "dagster_home" / "history")
    reply = indexed.command("refresh", "--json")
    assert json.loads(reply.stdout)["run_id"] is None
    assert indexed.keys() == {"docs/a.md", "docs/b.md", "docs/c.md"}
