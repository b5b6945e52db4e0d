"""Needs work: what is owed after any change of sources, settings and failures, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ctx_pipeline.chunking import open_chunker
from ctx_pipeline.contexts import open_contextualizer
from ctx_pipeline.documents.source import RACY_NS, FoundFile, SourceScan, is_racy
from ctx_pipeline.embedding import open_embedder
from ctx_pipeline.index.ledger import BACKOFF_MAX_S, Failure, LedgerRow
from ctx_pipeline.index.plan import Damage, Plan, make_plan, plan_counts, stored_work
from ctx_pipeline.index.tables import Store
from ctx_pipeline.index.versions import Stage, StageHashes, digest, stage_hashes
from ctx_pipeline.settings import SafetySettings, Settings

NOW = 1_800_000_000.0
SEEN_NS = 1_700_000_000_000_000_000
HASHES = StageHashes(parse="p", chunk="c", context="x", embed="e", fts="f")
MAX_BYTES = 1_000
SAFETY = SafetySettings(max_delete_share=0.2, max_delete_count=20)


def found(name: str = "a.md", *, size: int = 10, mtime_ns: int = 1, content: str | None = None) -> FoundFile:
    """A file of the source `docs`; `content` is its hash where the scan had to look."""
    return FoundFile(f"docs/{name}", f"/docs/{name}", size, mtime_ns, MAX_BYTES, SEEN_NS, content)


def indexed(name: str = "a.md", *, content: str = "A", hashes: StageHashes = HASHES, **changes: Any) -> LedgerRow:
    """A document that is indexed with `hashes` in search_1."""
    row = LedgerRow(
        f"docs/{name}", size=10, mtime_ns=1, read_at_ns=2, content_hash=content, parse=hashes.parse,
        chunk=hashes.chunk, context=hashes.context, chunks=3,
        indexed={"search_1": hashes.version(Stage.SEARCH, content)}, run_id="run-1",
    )  # fmt: skip
    return replace(row, **changes)


def failure(kind: Any = "permanent", **changes: Any) -> Failure:
    """What the file of `found()` met with the settings of now."""
    met = Failure(kind, "it is no text", 1, NOW + 60, 10, 1, 0, "", digest(HASHES.all, MAX_BYTES))
    return replace(met, **changes)


def plan(
    files: Iterable[FoundFile],
    rows: Iterable[LedgerRow],
    hashes: StageHashes = HASHES,
    *,
    scan: SourceScan | None = None,
    **options: Any,
) -> Plan:
    scan = scan or SourceScan("docs")
    scan.files = {file.doc_id: file for file in files}
    defaults = {"target": "search_1", "live": "search_1", "now": NOW, "safety": SAFETY}
    return make_plan([scan], {row.doc_id: row for row in rows}, hashes, **{**defaults, **options})


def work(made: Plan) -> list[tuple[str, str, str]]:
    return [(item.doc_id.removeprefix("docs/"), item.stage.name.lower(), item.reason) for item in made.work]


# Documents ---------------------------------------------------------------------------------------------------------


def test_a_document_that_is_as_it_was_is_owed_nothing() -> None:
    made = plan([found()], [indexed()])
    assert not made.owed
    assert (made.unchanged, made.notes, made.warnings) == (1, [], [])


def test_a_new_document_is_owed_from_its_first_stage() -> None:
    made = plan([found()], [])
    assert work(made) == [("a.md", "documents", "new")]
    assert made.work[0].file == found()
    assert made.work[0].edited


@pytest.mark.parametrize(
    "file",
    [found(size=11), found(size=11, mtime_ns=1), found(mtime_ns=2, content="B"), found(content="B"), found(content="")],
    ids=["other size", "other size, old mtime", "other bytes", "other bytes, same mtime", "cannot be hashed"],
)
def test_an_edited_document_is_owed_from_its_first_stage(file: FoundFile) -> None:
    made = plan([file], [indexed()])
    assert work(made) == [("a.md", "documents", "changed")]
    assert made.work[0].edited


def test_a_touched_document_is_noted_and_owed_nothing() -> None:
    made = plan([found(mtime_ns=2, content="A")], [indexed()])
    assert not made.owed
    assert made.notes == [indexed(mtime_ns=2, read_at_ns=SEEN_NS)]


def test_a_document_hashed_again_with_its_old_times_is_not_even_noted() -> None:
    made = plan([found(content="A")], [indexed(read_at_ns=SEEN_NS)])
    assert (made.owed, made.notes, made.unchanged) == (False, [], 1)


@pytest.mark.parametrize("kept", [1, None], ids=["another ctime", "a row without one"])
def test_a_changed_ctime_of_equal_content_is_noted_once(kept: int | None) -> None:
    file = replace(found(content="A"), ctime_ns=7)
    [noted] = plan([file], [indexed(read_at_ns=SEEN_NS, ctime_ns=kept)]).notes
    assert (noted.ctime_ns, noted.content_hash) == (7, "A")
    assert plan([replace(file, content_hash=None)], [noted]).notes == []


def test_a_failed_document_that_was_touched_is_noted_once_and_waits_on() -> None:
    met = failure(content_hash="B", ctime_ns=7)
    file = replace(found(mtime_ns=5, content="B"), ctime_ns=9)
    made = plan([file], [indexed(mtime_ns=0, failure=met)])
    assert not made.owed
    [noted] = made.notes
    assert noted.failure == replace(met, mtime_ns=5, ctime_ns=9, read_at_ns=SEEN_NS)
    assert (noted.mtime_ns, noted.content_hash) == (0, "A"), "what is indexed was not looked at"
    assert plan([replace(file, content_hash=None)], [noted]).notes == []


def test_a_file_that_could_not_be_read_is_due_when_its_mode_changed() -> None:
    met = failure("transient", next_try=NOW + 60, ctime_ns=1)
    assert not plan([replace(found(), ctime_ns=1)], [indexed(size=9, failure=met)]).owed
    assert plan([replace(found(content="B"), ctime_ns=2)], [indexed(size=9, failure=met)]).owed


@pytest.mark.parametrize(
    "read_at_ns", [2, SEEN_NS + RACY_NS], ids=["young when read", "read by a clock that was ahead"]
)
def test_an_mtime_in_the_future_is_hashed_again_once_and_then_trusted(read_at_ns: int) -> None:
    future = SEEN_NS + 10**18
    row = indexed(mtime_ns=future, read_at_ns=read_at_ns)
    assert is_racy(row)
    [noted] = plan([found(mtime_ns=future, content="A")], [row]).notes
    assert not is_racy(noted)
    too_soon = indexed(mtime_ns=future, read_at_ns=SEEN_NS - 1)
    assert plan([found(mtime_ns=future, content="A")], [too_soon]).notes == [], "an edit may follow within the tick"


def test_a_removed_document_is_removed() -> None:
    made = plan([found("b.md")], [indexed("a.md"), indexed("b.md")])
    assert (made.removed, made.work, made.owed) == (["docs/a.md"], [], True)


def test_a_renamed_document_is_a_new_one_and_a_removed_one() -> None:
    made = plan([found("b.md")], [indexed("a.md")])
    assert (work(made), made.removed) == ([("b.md", "documents", "new")], ["docs/a.md"])


def test_an_interrupted_document_is_owed_whatever_it_holds() -> None:
    for file in (found(), found(mtime_ns=2, content="A"), found(size=11)):
        assert work(plan([file], [indexed(writing="run-0")])) == [("a.md", "documents", "interrupted")]
    assert work(plan([found()], [LedgerRow("docs/a.md", writing="run-0")])) == [("a.md", "documents", "interrupted")]


def test_an_interrupted_document_that_is_gone_is_removed() -> None:
    assert plan([found("b.md")], [indexed(writing="run-0"), indexed("b.md")]).removed == ["docs/a.md"]


def test_work_is_in_order_of_documents() -> None:
    made = plan([found(name) for name in ("c.md", "a.md", "b.md")], [])
    assert [name for name, _, _ in work(made)] == ["a.md", "b.md", "c.md"]


# Settings ----------------------------------------------------------------------------------------------------------

API = {"base_url": "http://localhost:1", "model": "m", "dimension": 8}
SEMANTIC = {"chunking": {"strategy": "semantic"}}


def hashes_of(**sections: Mapping[str, Any]) -> StageHashes:
    values = {"embedding": {"model": "hashing"}, **sections}
    made = Settings.model_validate(values)
    embedder = open_embedder(made.embedding)
    chunker = open_chunker(made.chunking, embedder)
    contextualizer = open_contextualizer(made.contexts, embedder, Store(made.storage.uri))
    return stage_hashes(made, embedder, chunker, contextualizer)


@pytest.mark.parametrize(
    ("before", "after", "stage"),
    [
        ({}, {"chunking": {"max_tokens": 256}}, "chunks"),
        ({}, {"chunking": {"overlap": 20}}, "chunks"),
        ({}, {"chunking": {"strategy": "structure"}}, "chunks"),
        (SEMANTIC, {"chunking": {"strategy": "semantic", "semantic_percentile": 80}}, "chunks"),
        ({**SEMANTIC, "embedding": API}, {"embedding": {**API, "model": "n"}}, "chunks"),
        ({}, {"contexts": {"method": "none"}}, "contexts"),
        ({}, {"search": {"languages": ("Spanish",)}}, "search"),
        ({}, {"embedding": API}, "chunks"),
        ({"embedding": API}, {"embedding": {**API, "window_tokens": 512}}, "chunks"),
        ({"embedding": API}, {"embedding": {**API, "model": "n"}}, "search"),
        ({"embedding": API}, {"embedding": {**API, "dimension": 16}}, "search"),
        ({"embedding": API}, {"embedding": {**API, "base_url": "http://elsewhere"}}, "search"),
        # nothing that an index depends on
        ({}, {"chunking": {"semantic_percentile": 80}}, None),
        ({}, {"search": {"languages": ("English", "Spanish")}}, None),
        ({}, {"search": {"candidates": 9, "rrf_k": 9}}, None),
        ({}, {"storage": {"uri": Path("/elsewhere"), "retention": 9}}, None),
        ({}, {"schedule": {"cron": "0 3 * * *", "timezone": "Europe/Madrid"}}, None),
        ({}, {"dagster": {"partitions": "other", "max_documents_per_run": 9}}, None),
        ({}, {"safety": {"max_delete_share": 0.5, "max_delete_count": 9}}, None),
        ({}, {"source": ({"name": "docs", "path": "x", "include": ("*",), "max_bytes": 9},)}, None),
        ({"embedding": API}, {"embedding": {**API, "api_key": "secret"}}, None),
        ({}, {"embedding": {"model": "hashing", "path": "/models"}}, None),
    ],
)
def test_a_changed_setting_owes_its_stage_and_what_follows(
    before: dict[str, Any], after: dict[str, Any], stage: str | None
) -> None:
    made = plan([found()], [indexed(hashes=hashes_of(**before))], hashes_of(**{**before, **after}))
    assert [name for _, name, _ in work(made)] == ([stage] if stage else [])
    assert all(not item.edited and item.file == found() for item in made.work)


@pytest.mark.parametrize(
    ("changed", "stage", "reason"),
    [
        ({"parse": "p2"}, "documents", "settings: parse"),
        ({"chunk": "c2"}, "chunks", "settings: chunking"),
        ({"context": "x2"}, "contexts", "settings: contexts"),
        ({"embed": "e2"}, "search", "settings: search table"),
        ({"fts": "f2"}, "search", "settings: search table"),
        ({"parse": "p2", "fts": "f2"}, "documents", "settings: parse"),
        ({"chunk": "c2", "context": "x2"}, "chunks", "settings: chunking"),
    ],
)
def test_the_first_stage_that_differs_is_owed(changed: dict[str, str], stage: str, reason: str) -> None:
    assert work(plan([found()], [indexed()], replace(HASHES, **changed))) == [("a.md", stage, reason)]


def test_an_edit_under_other_settings_is_owed_once_from_the_first_stage() -> None:
    made = plan([found(size=11)], [indexed()], replace(HASHES, chunk="c2"))
    assert work(made) == [("a.md", "documents", "changed")]


def test_another_search_table_owes_every_document_that_is_not_in_it() -> None:
    both = indexed("b.md", indexed={name: HASHES.version(Stage.SEARCH, "A") for name in ("search_1", "search_2")})
    made = plan([found("a.md"), found("b.md")], [indexed("a.md"), both], target="search_2")
    assert work(made) == [("a.md", "search", "settings: search table")]
    assert made.build == "search_2"


def test_a_table_to_be_built_is_owed_work_though_no_document_is() -> None:
    assert plan([], [], target="search_2", live="search_1").owed
    assert plan([], [], target="search_1", live="").build == "search_1"


# Failures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", [LedgerRow("docs/a.md"), indexed(size=9, mtime_ns=0)], ids=["new", "edited"])
def test_a_permanent_failure_waits_and_is_shown(row: LedgerRow) -> None:
    made = plan([found()], [replace(row, failure=failure())])
    assert not made.owed
    assert made.failed == {"docs/a.md": "it is no text"}
    assert (made.notes, made.unchanged) == ([], 0)


@pytest.mark.parametrize("row", [LedgerRow("docs/a.md"), indexed(size=9, mtime_ns=0)], ids=["new", "edited"])
@pytest.mark.parametrize(
    ("file", "reason"),
    [(found(size=12), ("new", "changed")), (found(mtime_ns=2, content="B"), ("new", "changed"))],
    ids=["other size", "other mtime"],
)
def test_other_content_is_another_chance(row: LedgerRow, file: FoundFile, reason: tuple[str, str]) -> None:
    made = plan([file], [replace(row, failure=failure())])
    assert work(made) == [("a.md", "documents", reason[1] if row.content_hash else reason[0])]


@pytest.mark.parametrize("changed", ["parse", "chunk", "context", "embed", "fts"])
def test_other_settings_are_another_chance(changed: str) -> None:
    made = plan([found()], [LedgerRow("docs/a.md", failure=failure())], replace(HASHES, **{changed: "other"}))
    assert work(made) == [("a.md", "documents", "failed before")]


def test_a_lowered_limit_of_size_is_noticed_once() -> None:
    file = replace(found(), max_bytes=9)
    assert work(plan([file], [indexed()])) == [("a.md", "documents", "over max_bytes")]
    met = failure(settings=digest(HASHES.all, 9))
    assert not plan([file], [indexed(failure=met)]).owed


def test_another_limit_of_size_is_another_chance() -> None:
    rows = [LedgerRow("docs/a.md", failure=failure())]
    assert work(plan([replace(found(), max_bytes=MAX_BYTES + 1)], rows)) == [("a.md", "documents", "failed before")]


@pytest.mark.parametrize("kind", ["permanent", "transient"])
def test_retry_takes_up_every_failure(kind: str) -> None:
    made = plan([found()], [LedgerRow("docs/a.md", failure=failure(kind))], retry=True)
    assert work(made) == [("a.md", "documents", "failed before")]
    assert made.failed == {}


def test_a_next_try_further_away_than_any_pause_is_due() -> None:
    """The clock was ahead when it was set."""

    def is_owed(next_try: float) -> bool:
        return plan([found()], [indexed(size=9, failure=failure("transient", next_try=next_try))]).owed

    assert not is_owed(NOW + BACKOFF_MAX_S)
    assert is_owed(NOW + BACKOFF_MAX_S + 1)
    assert is_owed(NOW + 10 * 365 * 86_400)


def test_a_transient_failure_waits_for_its_next_try() -> None:
    rows = [LedgerRow("docs/a.md", failure=failure("transient", settings="others"))]
    waiting, due = plan([found()], rows, now=NOW + 59), plan([found()], rows, now=NOW + 60)
    assert (waiting.owed, waiting.failed) == (False, {"docs/a.md": "it is no text"})
    assert work(due) == [("a.md", "documents", "failed before")]
    assert due.failed == {}


def test_a_failed_edit_that_was_undone_is_forgotten() -> None:
    undone = found(size=10, mtime_ns=5, content="A")
    made = plan([undone], [indexed(failure=failure(size=11, mtime_ns=4))])
    assert not made.owed
    assert made.failed == {}
    assert made.notes == [indexed(mtime_ns=5, read_at_ns=SEEN_NS)]
    restored = plan([found(size=10, mtime_ns=1)], [indexed(failure=failure(size=11, mtime_ns=4))])
    assert restored.notes == [indexed(read_at_ns=SEEN_NS)]


def test_a_failed_edit_that_was_undone_after_rows_were_written_is_owed() -> None:
    """Its rows are ahead of the ledger, as the mark tells."""
    marked = indexed(failure=failure(size=11, mtime_ns=4, content_hash="B"), writing="run-0")
    assert work(plan([found()], [marked])) == [("a.md", "documents", "interrupted")]


def test_a_failure_met_by_content_of_the_same_size_is_told_apart_by_its_hash() -> None:
    row = indexed(mtime_ns=0, failure=failure(content_hash="B", mtime_ns=7))
    assert not plan([found(mtime_ns=8, content="B")], [row]).owed, "touched, and as it failed"
    assert work(plan([found(mtime_ns=7, content="C")], [row])) == [("a.md", "documents", "changed")]


def test_a_failed_edit_leaves_the_good_version_subject_to_settings() -> None:
    row = indexed(size=9, mtime_ns=0, failure=failure("transient"))
    made = plan([found()], [row], replace(HASHES, chunk="c2"))
    assert work(made) == [("a.md", "chunks", "settings: chunking")]
    assert (made.work[0].file, made.work[0].edited) == (None, False)
    assert made.failed == {"docs/a.md": "it is no text"}
    assert not plan([found()], [row], replace(HASHES, parse="p2")).work, "the parser needs the file"


# Sources out of sight ------------------------------------------------------------------------------------------------


def unreachable() -> SourceScan:
    return SourceScan("docs", unreachable="/docs: Permission denied")


def test_an_unreachable_source_deletes_nothing_however_much_is_allowed() -> None:
    rows = [indexed(f"{n}.md") for n in range(3)]
    made = plan([], rows, scan=unreachable(), allow_mass_delete=True)
    assert not made.owed
    assert (made.removed, made.held, made.unchanged) == ([], {}, 0)
    assert made.warnings == [
        "source 'docs' cannot be read (/docs: Permission denied); its documents stay as they are indexed"
    ]


def test_an_unreadable_folder_keeps_what_is_below_it() -> None:
    scan = SourceScan("docs", unreadable={"docs/sub": "Permission denied"})
    made = plan([found("b.md")], [indexed("sub/a.md"), indexed("subway.md"), indexed("b.md")], scan=scan)
    assert made.removed == ["docs/subway.md"]
    assert made.warnings == ["docs/sub cannot be read (Permission denied); what is indexed below it stays"]


def test_what_is_out_of_sight_still_follows_the_settings_from_the_stored_documents() -> None:
    def stages(changed: Mapping[str, str]) -> list[str]:
        made = plan([], [indexed()], replace(HASHES, **changed), scan=unreachable())
        assert all(item.file is None and not item.edited for item in made.work)
        return [item.stage.name.lower() for item in made.work]

    assert stages({"chunk": "c2"}) == ["chunks"]
    assert stages({"context": "x2"}) == ["contexts"]
    assert stages({"fts": "f2"}) == ["search"]
    assert stages({"parse": "p2"}) == []


def test_what_is_out_of_sight_and_interrupted_or_never_indexed_waits() -> None:
    rows = [indexed("a.md", writing="run-0"), LedgerRow("docs/b.md", failure=failure()), LedgerRow("docs/c.md")]
    made = plan([], rows, replace(HASHES, chunk="c2"), scan=unreachable())
    assert not made.owed
    assert made.failed == {"docs/b.md": "it is no text"}


STORED = failure(content_hash="A", settings=HASHES.all)


@pytest.mark.parametrize(
    "met", [STORED, replace(STORED, kind="transient", next_try=NOW + 60)], ids=["for good", "not yet due"]
)
def test_a_stored_document_that_failed_waits_as_well(met: Failure) -> None:
    row = indexed(hashes=replace(HASHES, embed="before"), failure=met)
    assert not plan([], [row], scan=unreachable()).owed
    assert not plan([found()], [row]).owed


# Deletions -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gone", "total", "held"),
    [
        (20, 21, False),
        (21, 21, True),
        (21, 104, True),
        (21, 105, False),
        (20, 50, False),
        (100, 400, True),
        (0, 5, False),
    ],
)
def test_deletions_beyond_both_the_share_and_the_count_are_held_back(gone: int, total: int, held: bool) -> None:
    rows = [indexed(f"{n:03}.md") for n in range(total)]
    files = [found(f"{n:03}.md") for n in range(gone, total)]
    made = plan(files, rows)
    assert made.held == ({"docs": gone} if held else {})
    assert len(made.removed) == (0 if held else gone)
    assert made.unchanged == total - gone
    assert made.owed == (gone > 0 and not held)
    allowed = plan(files, rows, allow_mass_delete=True)
    assert (allowed.held, len(allowed.removed), allowed.warnings) == ({}, gone, [])


def test_a_root_that_held_documents_and_holds_none_deletes_nothing_by_itself() -> None:
    made = plan([], [indexed("a.md")])
    assert (made.removed, made.held, made.owed) == ([], {"docs": 1}, False)
    [message] = made.warnings
    assert "'docs' has no document any more: deleting its 1 is held back" in message
    assert "--allow-mass-delete" in message
    assert plan([], [indexed("a.md")], allow_mass_delete=True).removed == ["docs/a.md"]
    [held] = plan([], [], damage=Damage(orphans=("docs/a.md",))).warnings
    assert "deleting its 1 is held back" in held, "rows without a ledger are a document's last trace"


def test_an_ordinary_folder_whose_last_document_went_is_an_ordinary_deletion() -> None:
    made = plan([found("b.md")], [indexed("sub/a.md"), indexed("b.md")])
    assert (made.removed, made.held) == (["docs/sub/a.md"], {})


def test_what_was_below_a_mount_point_that_is_none_now_stays_until_it_is_allowed_to_go() -> None:
    rows = [indexed("vol/a.md"), indexed("vol/deep/b.md"), indexed("volume.md"), indexed("c.md")]

    def unmounted() -> SourceScan:
        return SourceScan("docs", mounts=frozenset({"docs/other"}), unmounted=frozenset({"docs/vol", "docs/vol/deep"}))

    made = plan([found("c.md")], rows, scan=unmounted())
    assert (made.removed, made.held) == (["docs/volume.md"], {"docs": 2})
    assert made.mounts == {"docs": {"docs/other", "docs/vol"}}, "remembered while documents are missing below it"
    [message] = made.warnings
    for part in (
        "docs/vol: a mount point before, and none now",
        "2 documents",
        "mount it again",
        "--allow-mass-delete",
    ):
        assert part in message
    allowed = plan([found("c.md")], rows, scan=unmounted(), allow_mass_delete=True)
    assert len(allowed.removed) == 3
    assert allowed.mounts == {"docs": {"docs/other"}}, "and forgotten with them"
    there = plan([found("vol/a.md"), found("vol/deep/b.md"), found("c.md")], rows, scan=unmounted())
    assert there.mounts == {"docs": {"docs/other"}}, "an ordinary folder that holds them all"


def test_what_is_there_but_left_out_now_is_held_back_and_named() -> None:
    rows = [indexed(f"build/{n}.md") for n in range(5)] + [indexed("a.md"), indexed("gone.md")]
    left_out = {f"docs/build/{n}.md": ".gitignore" for n in range(5)}
    made = plan([found("a.md")], rows, scan=SourceScan("docs", left_out=left_out))
    assert (made.removed, made.held) == (["docs/gone.md"], {"docs": 5})
    [message] = made.warnings
    for part in (
        "5 indexed documents",
        "docs/build/0.md (.gitignore)",
        "and 2 more",
        "--allow-mass-delete",
        "gitignore = false",
    ):
        assert part in message
    allowed = plan([found("a.md")], rows, scan=SourceScan("docs", left_out=left_out), allow_mass_delete=True)
    assert len(allowed.removed) == 6


def test_held_deletions_are_told_with_their_numbers_and_the_remedy_while_edits_go_on() -> None:
    rows = [indexed(f"{n:02}.md") for n in range(30)]
    made = plan([found("00.md", size=11), found("new.md")], rows)
    assert work(made) == [("00.md", "documents", "changed"), ("new.md", "documents", "new")]
    [message] = made.warnings
    for part in (
        "'docs' no longer holds them",
        "29 of its 30",
        "max_delete_count 20",
        "max_delete_share 0.2",
        "--allow",
    ):
        assert part in message


def test_held_documents_still_follow_the_settings() -> None:
    rows = [indexed(f"{n:02}.md") for n in range(30)]
    made = plan([], rows, replace(HASHES, chunk="c2"))
    assert {item.stage for item in made.work} == {Stage.CHUNKS}
    assert len(made.work) == 30


def test_sources_are_judged_by_themselves() -> None:
    small, large = [f"a/{n:03}.md" for n in range(25)], [f"b/{n:03}.md" for n in range(200)]
    rows = {doc_id: replace(indexed(), doc_id=doc_id) for doc_id in small + large}
    files = {doc_id: replace(found(), doc_id=doc_id) for doc_id in large[1:]}
    scans = [SourceScan("a"), SourceScan("b", files=files)]
    made = make_plan(scans, rows, HASHES, target="search_1", live="search_1", now=NOW, safety=SAFETY)
    assert (made.held, made.removed) == ({"a": 25}, ["b/000.md"]), "25 of 25, and not of 225"


def test_a_source_that_left_the_settings_is_deleted_within_the_same_limits() -> None:
    few = {f"old/{n}.md": replace(indexed(), doc_id=f"old/{n}.md") for n in range(3)}
    many = {f"old/{n}.md": replace(indexed(), doc_id=f"old/{n}.md") for n in range(30)}
    options: dict[str, Any] = {"target": "search_1", "live": "search_1", "now": NOW, "safety": SAFETY}
    assert make_plan([SourceScan("docs")], few, HASHES, **options).removed == sorted(few)
    held = make_plan([SourceScan("docs")], many, HASHES, **options)
    assert held.held == {"old": 30}
    assert "'old' is no longer in the settings" in held.warnings[0]
    assert make_plan([], many, HASHES, **options, allow_mass_delete=True).removed == sorted(many)


def test_what_a_narrower_include_leaves_out_is_deleted() -> None:
    assert plan([found("a.md")], [indexed("a.md"), indexed("b.txt")]).removed == ["docs/b.txt"]


# Damage ------------------------------------------------------------------------------------------------------------


def test_missing_rows_are_owed_from_the_stage_that_lost_them() -> None:
    damage = Damage({"docs/a.md": Stage.CONTEXTS})
    made = plan([found("a.md"), found("b.md")], [indexed("a.md"), indexed("b.md")], damage=damage)
    assert work(made) == [("a.md", "contexts", "rows missing")]
    assert made.unchanged == 1


@pytest.mark.parametrize(
    ("lost", "changed", "stage"), [(Stage.SEARCH, "chunk", "chunks"), (Stage.DOCUMENTS, "chunk", "documents")]
)
def test_damage_and_settings_together_owe_the_earlier_stage(lost: Stage, changed: str, stage: str) -> None:
    made = plan([found()], [indexed()], replace(HASHES, **{changed: "other"}), damage=Damage({"docs/a.md": lost}))
    assert [name for _, name, _ in work(made)] == [stage]


def test_rows_of_unknown_documents_are_owed_their_deletion() -> None:
    made = plan([found()], [indexed()], damage=Damage(orphans=("docs/z.md", "docs/b.md")))
    assert (made.removed, made.work, made.owed) == (["docs/b.md", "docs/z.md"], [], True)


# Skipped, counts, digest -------------------------------------------------------------------------------------------


def test_skipped_entries_are_passed_on() -> None:
    scan = SourceScan("docs", skipped={"docs/link.md": "a symbolic link out of the source"})
    assert plan([], [], scan=scan).skipped == {"docs/link.md": "a symbolic link out of the source"}


def test_counts_tell_every_document_once() -> None:
    rows = [indexed("same.md"), indexed("edit.md"), indexed("gone.md"), LedgerRow("docs/bad.md", failure=failure())]
    scan = SourceScan("docs", skipped={"docs/link.md": "a link"})
    made = plan([found("same.md"), found("edit.md", size=11), found("new.md"), found("bad.md")], rows, scan=scan)
    known = {row.doc_id for row in rows if row.content_hash}
    assert plan_counts(made, known) == {
        "added": 1, "changed": 1, "removed": 1, "unchanged": 1, "failed": 1, "skipped": 1,
    }  # fmt: skip


BASE = [indexed("a.md"), indexed("b.md"), LedgerRow("docs/bad.md", failure=failure())]
FILES = [found("a.md", size=11), found("b.md"), found("bad.md")]


def test_the_digest_is_the_same_for_the_same_work() -> None:
    assert plan(FILES, BASE).digest() == plan(reversed(FILES), reversed(BASE)).digest()
    later = plan(FILES, BASE, now=NOW + 1).digest()
    assert later == plan(FILES, BASE).digest()
    unrelated = [*FILES, found("touched.md", mtime_ns=9, content="A")]
    assert plan(unrelated, [*BASE, indexed("touched.md")]).digest() == plan(FILES, BASE).digest()


@pytest.mark.parametrize(
    ("files", "rows", "options"),
    [
        ([found("a.md", size=12), *FILES[1:]], BASE, {}),
        ([found("a.md", size=11, mtime_ns=2), *FILES[1:]], BASE, {}),
        ([found("a.md"), *FILES[1:]], BASE, {}),
        ([*FILES, found("new.md")], BASE, {}),
        ([FILES[0], FILES[2]], BASE, {}),
        (FILES, BASE, {"retry": True}),
        (FILES, BASE, {"hashes": replace(HASHES, fts="f2")}),
        (FILES, BASE, {"target": "search_2"}),
        (FILES, BASE, {"damage": Damage({"docs/b.md": Stage.SEARCH})}),
        (FILES, BASE, {"damage": Damage(orphans=("docs/z.md",))}),
        (FILES, [indexed("a.md", writing="run-0"), *BASE[1:]], {}),
    ],
    ids=[
        "size", "mtime", "undone", "added", "removed", "retry", "settings", "another table", "lost rows", "orphans",
        "interrupted",
    ],
)  # fmt: skip
def test_the_digest_changes_with_the_work(
    files: list[FoundFile], rows: list[LedgerRow], options: dict[str, Any]
) -> None:
    assert plan(files, rows, **options).digest() != plan(FILES, BASE).digest()


# Any state: what is done is not owed again ---------------------------------------------------------------------------

NAMES = st.sampled_from(["a.md", "b.md", "sub/c.md", "sub/d.md"])
SIZES = {"A": 10, "B": 10, "C": 11}
CONTENT = st.sampled_from("ABC")
MTIME = st.sampled_from([1, 2])
MARK = st.sampled_from(["", "run-0"])
SOME_HASHES = st.builds(
    StageHashes, *(st.sampled_from([stage, stage + "2"]) for stage in "pcx"), embed=st.just("e"), fts=st.just("f")
)
FAILURES = st.builds(
    lambda kind, content, was_read, **more: failure(
        kind, size=SIZES[content], content_hash=content if was_read else "", **more
    ),
    st.sampled_from(["permanent", "transient"]),
    CONTENT,
    st.booleans(),
    mtime_ns=MTIME,
    next_try=st.sampled_from([NOW - 1, NOW + 1]),
    settings=st.sampled_from(["others", digest(HASHES.all, MAX_BYTES)]),
)
ROWS = st.builds(
    lambda name, content, **more: indexed(name, content=content, size=SIZES[content], **more),
    NAMES,
    CONTENT,
    hashes=SOME_HASHES,
    mtime_ns=MTIME,
    failure=st.none() | FAILURES,
    writing=MARK,
)
NEVER_INDEXED = st.builds(
    lambda name, met, mark: LedgerRow(f"docs/{name}", failure=met, writing=mark), NAMES, st.none() | FAILURES, MARK
)
ON_DISK = st.dictionaries(NAMES, st.tuples(CONTENT, MTIME).map(lambda file: (SIZES[file[0]], file[1], file[0])))
SIGHT = st.sampled_from(["all", "unreadable", "unreachable"])


def look(disk: Mapping[str, tuple[int, int, str]], rows: Mapping[str, LedgerRow], sight: str) -> SourceScan:
    """What a scan that knows `rows` finds: it hashes a file of the known size whose mtime is another."""
    scan = SourceScan("docs")
    if sight == "unreachable":
        scan.unreachable = "/docs: gone"
        return scan
    if sight == "unreadable":
        scan.unreadable = {"docs/sub": "Permission denied"}
    for name, (size, mtime_ns, content) in disk.items():
        if sight == "unreadable" and name.startswith("sub/"):
            continue
        row = rows.get(f"docs/{name}")
        hashed = row is not None and row.size == size and row.mtime_ns != mtime_ns
        scan.files[f"docs/{name}"] = found(name, size=size, mtime_ns=mtime_ns, content=content if hashed else None)
    return scan


def carry_out(
    made: Plan, rows: Mapping[str, LedgerRow], disk: Mapping[str, tuple[int, int, str]], failing: set[str]
) -> dict[str, LedgerRow]:
    """The ledger after a refresh in which the files of `failing` could not be read."""
    after = {doc_id: row for doc_id, row in rows.items() if doc_id not in made.removed}
    after.update({row.doc_id: row for row in made.notes})
    unread = {item.doc_id for item in made.work if item.stage is Stage.DOCUMENTS and item.doc_id in failing}
    for item in made.work:
        row, file = after.get(item.doc_id) or LedgerRow(item.doc_id), item.file
        if item.doc_id in unread:
            assert file is not None
            after[item.doc_id] = replace(row, failure=failure(size=file.size, mtime_ns=file.mtime_ns))
        elif item.stage is Stage.DOCUMENTS:
            size, mtime_ns, content = disk[item.doc_id.removeprefix("docs/")]
            after[item.doc_id] = replace(indexed(content=content), doc_id=item.doc_id, size=size, mtime_ns=mtime_ns)
        else:
            after[item.doc_id] = from_stored(row)
    for item in stored_work(map(after.get, sorted(unread)), HASHES, "search_1", NOW):
        after[item.doc_id] = from_stored(after[item.doc_id])
    return after


def from_stored(row: LedgerRow) -> LedgerRow:
    """A document whose later stages were done; a failure that newer content met stays."""
    met = row.failure if row.failure and row.failure.content_hash != row.content_hash else None
    done = indexed(content=row.content_hash)
    return replace(done, doc_id=row.doc_id, size=row.size, mtime_ns=row.mtime_ns, failure=met)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(ROWS | NEVER_INDEXED, max_size=4, unique_by=lambda row: row.doc_id),
    ON_DISK,
    SIGHT,
    st.sets(NAMES.map("docs/{}".format)),
    st.booleans(),
)
@example([indexed("a.md", failure=failure(size=11))], {"a.md": (10, 1, "A")}, "all", set(), False)
def test_after_a_refresh_nothing_is_owed_until_something_changes(
    rows: list[LedgerRow], disk: dict[str, tuple[int, int, str]], sight: str, failing: set[str], retry: bool
) -> None:
    before = {row.doc_id: row for row in rows}

    def make(ledger: Mapping[str, LedgerRow], **options: Any) -> Plan:
        scan = look(disk, ledger, sight)
        return make_plan([scan], ledger, HASHES, target="search_1", live="search_1", now=NOW, safety=SAFETY, **options)

    made = make(before, retry=retry)
    assert len({item.doc_id for item in made.work}) == len(made.work)
    assert not {item.doc_id for item in made.work} & set(made.removed)
    after = carry_out(made, before, disk, failing)
    again = make(after)
    assert again.work == []
    assert again.removed == []
    # And what is indexed without a failure is what is there.
    for doc_id, row in after.items():
        on_disk = disk.get(doc_id.removeprefix("docs/"))
        seen = sight == "all" or (sight == "unreadable" and not doc_id.startswith("docs/sub/"))
        if seen and row.failure is None and not hidden(before.get(doc_id), on_disk):
            if on_disk is None:
                assert made.held, "only an empty root keeps what is gone"
                continue
            assert row.content_hash == on_disk[2]


def hidden(row: LedgerRow | None, on_disk: tuple[int, int, str] | None) -> bool:
    """Whether an edit hides behind the size and mtime that the ledger knows (only `--verify` finds it)."""
    return row is not None and on_disk is not None and (row.size, row.mtime_ns) == on_disk[:2]


# Contexts that are not written ---------------------------------------------------------------------------------------

COUNTS = {"written": 1, "pending": 3, "pending:budget": 2, "pending:no_key": 1, "fallback": 1}


def test_pending_contexts_are_owed_when_their_reason_no_longer_holds() -> None:
    row = indexed(context_counts=COUNTS)
    assert work(plan([found()], [row], take_up={"budget"})) == [("a.md", "contexts", "2 contexts pending: budget")]
    both = plan([found()], [row], take_up={"budget", "no_key"})
    assert work(both) == [("a.md", "contexts", "2 contexts pending: budget, 1 context pending: no_key")]
    assert both.work[0].only_awaited
    assert not both.work[0].edited


@pytest.mark.parametrize("take_up", [(), {"auth"}])
def test_pending_contexts_whose_reason_holds_are_no_work(take_up: Iterable[str]) -> None:
    made = plan([found()], [indexed(context_counts=COUNTS)], take_up=take_up)
    assert not made.owed
    assert made.unchanged == 1
    assert made.contexts == COUNTS, "they are told of all the same"


def test_retry_takes_up_fallback_contexts() -> None:
    made = plan([found()], [indexed(context_counts={"written": 2, "fallback": 1})], retry=True)
    assert work(made) == [("a.md", "contexts", "1 context fallback")]
    assert not plan([found()], [indexed(context_counts={"written": 3})], retry=True).owed


def test_contexts_that_wait_are_done_with_other_work_on_the_document() -> None:
    row = indexed(context_counts=COUNTS)
    edited = plan([found(size=11)], [row], take_up={"budget"})
    assert work(edited) == [("a.md", "documents", "changed")]
    other_table = plan([found()], [row], take_up={"budget"}, target="search_2")
    assert work(other_table) == [("a.md", "contexts", "2 contexts pending: budget")]
    assert not edited.work[0].only_awaited
    assert not other_table.work[0].only_awaited
    other_method = plan([found()], [row], replace(HASHES, context="y"), take_up={"budget"})
    assert work(other_method) == [("a.md", "contexts", "settings: contexts")]


def test_contexts_that_wait_need_no_source() -> None:
    made = plan([], [indexed(context_counts=COUNTS)], take_up={"budget"}, scan=SourceScan("docs", unreachable="gone"))
    assert work(made) == [("a.md", "contexts", "2 contexts pending: budget")]
    assert made.work[0].file is None
