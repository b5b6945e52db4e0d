"""Another embedder or full-text setting builds a table beside the live one and switches at the end."""

from __future__ import annotations

import pytest

from ctx_pipeline.doctor import diagnose
from ctx_pipeline.embedding.hashing import HashingEmbedder
from ctx_pipeline.errors import FatalError, TransientError
from ctx_pipeline.index.ledger import Ledger
from ctx_pipeline.index.search import SearchIndex
from tests.project import Project

TEXT = "# Guía\n\n## Uno\n\nPrimera parte.\n\n## Dos\n\nSegunda parte.\n"


class StoppedError(Exception):
    """Stands for a kill in the middle of a build."""


def live(project: Project) -> str:
    return project.pipeline().search_tables().live


def interrupt_after(point: str, times: int):
    seen = []

    def on_commit(name: str) -> None:
        seen.append(name)
        if seen.count(point) == times:
            raise StoppedError

    return on_commit


def build_half(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin a table for other languages and stop after its first batch of one document."""
    monkeypatch.setattr("ctx_pipeline.index.batches.BATCH_DOCUMENTS", 1)
    project.write_settings(search={"languages": ["English"]})
    with pytest.raises(StoppedError):
        project.refresh(on_commit=interrupt_after("ledger", 1))


def test_readers_stay_on_the_live_table_until_the_other_is_whole(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(3):
        project.write(f"d{n}.md", TEXT + str(n))
    project.refresh()
    build_half(project, monkeypatch)
    assert live(project) == "search_1"
    assert project.pipeline().store.count("search_2") == 2
    assert len(project.search_rows(("chunk_id",))) == 6
    summary = project.refresh()
    assert summary.switched_to == live(project) == "search_2"
    assert summary.embedded == 0
    assert len(project.search_rows(("chunk_id", "text_english"))) == 6
    assert project.pipeline().store.count("search_1") == 6, "kept for a way back"


def test_an_edit_after_a_switch_is_done_once(project: Project) -> None:
    project.write("a.md", TEXT)
    project.refresh()
    project.write_settings(search={"languages": ["English"]})
    project.refresh()
    project.write("a.md", TEXT + "\n## Tres\n\nTercera parte.\n")
    assert project.refresh().changed == 1
    assert not project.pipeline().plan().owed
    assert diagnose(project.pipeline(), project.keys_of_ledger) == []


def test_edits_and_deletions_during_a_build_reach_both_tables(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(3):
        project.write(f"d{n}.md", TEXT + str(n))
    project.refresh()
    build_half(project, monkeypatch)
    project.write("d0.md", "# Nueva\n\nOtra cosa.\n")
    (project.docs / "d1.md").unlink()
    with pytest.raises(StoppedError):
        project.refresh(on_commit=interrupt_after("removal done", 1))
    store = project.pipeline().store
    assert live(project) == "search_1"
    for table in ("search_1", "search_2"):
        texts = {row["text"] for row in store.rows(table, ["docs/d0.md"])}
        assert texts == {"# Nueva\n\nOtra cosa."}
        assert store.rows(table, ["docs/d1.md"]) == []


def test_a_half_built_table_nobody_wants_is_dropped(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(3):
        project.write(f"d{n}.md", TEXT + str(n))
    project.refresh()
    rows = project.search_rows()
    build_half(project, monkeypatch)
    project.write_settings(search={"languages": ["Spanish", "English"]})
    project.refresh()
    assert list(project.pipeline().store.search_tables()) == ["search_1"]
    assert project.search_rows() == rows
    project.write_settings(search={"languages": ["English"]})
    project.refresh()
    assert live(project) == "search_3", "numbers of dropped tables are not used again"
    assert len(project.search_rows(("chunk_id",))) == 6


def test_a_failed_document_keeps_its_last_good_version_across_a_switch(project: Project) -> None:
    project.write("a.md", TEXT)
    project.write("b.md", TEXT)
    project.refresh()
    project.write("b.md", b"\x80 broken")
    project.refresh()
    project.write_settings(search={"languages": ["English"]})
    project.refresh()
    assert live(project) == "search_2"
    assert project.documents() == {"docs/a.md", "docs/b.md"}
    assert set(project.pipeline().plan().failed) == {"docs/b.md"}


def test_a_failed_document_that_cannot_be_carried_over_is_named(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("a.md", TEXT)
    project.write("b.md", TEXT)
    project.refresh()
    project.write("b.md", b"\x80 broken")
    monkeypatch.setattr("ctx_pipeline.documents.parse.VERSION", 99)
    project.write_settings(search={"languages": ["English"]})
    summary = project.refresh()
    assert summary.switched_to == "search_2"
    assert any("could not be carried over" in warning and "docs/b.md" in warning for warning in summary.warnings)


def test_search_uses_the_embedder_of_the_live_table_whatever_the_settings_say(project: Project) -> None:
    project.write("a.md", TEXT)
    project.refresh()
    project.write_settings(embedding={"model": "multilingual-e5-small"})
    index = SearchIndex.open(project.settings.storage.uri, project.settings)
    assert index.search("segunda parte", k=1, mode="vector")[0].text.startswith("## Dos")


def test_a_live_table_whose_embedder_is_gone_is_refused_naming_both(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("a.md", TEXT)
    project.refresh()
    monkeypatch.setattr(HashingEmbedder, "fingerprint", "a newer version of the model")
    index = SearchIndex.open(project.settings.storage.uri, project.settings)
    with pytest.raises(FatalError, match=r"built with hashing.*settings name hashing.*ctx-pipeline refresh"):
        index.search("parte")
    assert index.search("parte", mode="keyword")


def test_an_edit_during_a_build_waits_for_the_switch_when_the_live_embedder_is_gone(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("a.md", TEXT)
    project.refresh()
    monkeypatch.setattr(HashingEmbedder, "fingerprint", "a newer version of the model")
    project.write("a.md", "# Nueva\n\nOtra cosa.\n")
    summary = project.refresh()
    assert summary.switched_to == "search_2"
    assert any("only after the switch" in warning for warning in summary.warnings)
    assert [row["text"] for row in project.search_rows()] == ["# Nueva\n\nOtra cosa."]


def test_one_text_that_the_embedder_refuses_fails_one_document(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = HashingEmbedder.embed_passages

    def picky(self: HashingEmbedder, texts):
        if any("poison" in text for text in texts):
            raise ValueError("cannot embed that")
        return original(self, texts)

    for n in range(3):
        project.write(f"d{n}.md", TEXT + str(n))
    project.refresh()
    monkeypatch.setattr(HashingEmbedder, "embed_passages", picky)
    project.write("d0.md", "# Bad\n\npoison\n")
    project.write("d1.md", "# Good\n\nfine\n")
    summary = project.refresh()
    assert summary.failures == {"docs/d0.md": "ValueError: cannot embed that"}
    texts = {row["doc_id"]: row["text"] for row in project.search_rows(("chunk_id", "doc_id", "text"))}
    assert texts["docs/d1.md"] == "# Good\n\nfine"
    assert "poison" not in texts["docs/d0.md"], "the last good version stays searchable"
    project.write("d0.md", TEXT + "0")  # the edit is undone: the tables behind are put right
    project.refresh()
    assert project.pipeline().store.rows("documents", ["docs/d0.md"])[0]["text"] == TEXT + "0"
    assert not project.pipeline().plan().owed
    assert not project.pipeline().plan().failed


def test_an_embedder_that_is_down_stops_the_refresh_and_loses_nothing(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ctx_pipeline.index.batches.BATCH_DOCUMENTS", 1)
    for n in range(3):
        project.write(f"d{n}.md", TEXT + str(n))
    original, calls = HashingEmbedder.embed_passages, []

    def down_after_one(self: HashingEmbedder, texts):
        calls.append(len(texts))
        if len(calls) > 1:
            raise TransientError("the endpoint does not answer")
        return original(self, texts)

    monkeypatch.setattr(HashingEmbedder, "embed_passages", down_after_one)
    with pytest.raises(FatalError, match="the endpoint does not answer"):
        project.refresh()
    assert len(calls) == 2, "the next documents do not wait for it in vain"
    assert [work.doc_id for work in project.pipeline().plan().work] == ["docs/d1.md", "docs/d2.md"]
    monkeypatch.undo()
    project.refresh()
    assert project.documents() == {"docs/d0.md", "docs/d1.md", "docs/d2.md"}


def switch_languages(project: Project, *languages: str) -> str:
    project.write_settings(search={"languages": list(languages)})
    return project.refresh().switched_to


def test_one_superseded_table_stays_and_older_ones_go(project: Project) -> None:
    project.write("a.md", TEXT)
    project.refresh()
    tables = [["search_1"]]
    for languages in (["English"], ["Spanish"], ["French"]):
        switch_languages(project, *languages)
        project.write("a.md", TEXT + f"\n## {languages[0]}\n\nMás.\n")
        project.refresh()
        tables.append(list(project.pipeline().store.search_tables()))
    assert tables == [["search_1"], ["search_1", "search_2"], ["search_2", "search_3"], ["search_3", "search_4"]]
    assert live(project) == "search_4"
    assert set(Ledger.read(project.pipeline().store).rows["docs/a.md"].indexed) == {"search_4"}


def test_an_edit_after_a_switch_leaves_the_superseded_table_as_it_was(project: Project) -> None:
    project.write("a.md", TEXT)
    project.refresh()
    switch_languages(project, "English")
    store = project.pipeline().store
    version = store.table("search_1").version
    project.write("a.md", "# Nueva\n\nOtra cosa.\n")
    project.refresh()
    assert store.table("search_1").version == version
    assert [row["text"] for row in store.rows("search_2", ["docs/a.md"])] == ["# Nueva\n\nOtra cosa."]


def test_going_back_to_an_embedder_embeds_nothing_anew(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write("a.md", TEXT)
    chunks = project.refresh().embedded
    with monkeypatch.context() as patch:
        patch.setattr(HashingEmbedder, "fingerprint", "another model")
        assert project.refresh().embedded == chunks
    back = project.refresh()
    assert (back.switched_to, back.embedded, back.reused) == ("search_3", 0, chunks)


def test_a_text_that_several_documents_share_is_embedded_and_counted_once(project: Project) -> None:
    for name in ("a/guide.md", "b/guide.md", "c/guide.md"):
        project.write(name, TEXT)
    summary = project.refresh()
    assert (summary.embedded, summary.reused) == (2, 4)
