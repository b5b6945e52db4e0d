"""An index that an earlier version of this program wrote: it opens, is refreshed in place, and pays for nothing."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctx_pipeline.contexts import outline
from ctx_pipeline.costs import refresh_costs
from ctx_pipeline.documents import parse
from ctx_pipeline.index.ledger import Ledger
from ctx_pipeline.index.schemas import MEMO
from ctx_pipeline.index.search import SearchIndex
from ctx_pipeline.inspection import document_rows, index_status
from ctx_pipeline.settings import EmbeddingSettings
from ctx_pipeline.summary import RefreshOptions
from tests.emulators.messages import KEY, MessagesEmulator
from tests.project import Project

INDEXES = sorted(Path(__file__).parent.glob("indexes/*.tar.gz"))
QUESTION = "Which rule of release 7 holds?"


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[MessagesEmulator]:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with MessagesEmulator() as emulator:
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", emulator.url)
        yield emulator


@pytest.fixture(params=INDEXES, ids=lambda path: path.name.removesuffix(".tar.gz"))
def written(request: pytest.FixtureRequest, project: Project) -> Project:
    """The project with the documents and the `claude` index of an earlier version."""
    with tarfile.open(request.param) as archive:
        archive.extractall(project.root, filter="data")
    project.write_settings(
        storage={"uri": str(project.root / "claude")},
        chunking={"max_tokens": 96},
        contexts={"method": "claude", "window_tokens": 1000},
    )
    return project


def contexts(project: Project) -> list[str]:
    pipeline = project.pipeline()
    rows = pipeline.store.all_rows(pipeline.search_tables().live, ["context", "context_status"]).to_pylist()
    return sorted(row["context"] for row in rows if row["context_status"] == "written")


def chunks(project: Project, doc_id: str) -> int:
    return Ledger.read(project.pipeline().store).rows[doc_id].chunks


def test_it_is_read_before_it_is_refreshed(written: Project, api: MessagesEmulator) -> None:
    assert SearchIndex.open(written.settings.storage.uri, written.settings).search(QUESTION)
    assert index_status(written.pipeline())["documents"] == 9
    assert document_rows(written.pipeline(), "docs/pumps.rst")


def test_a_refresh_pays_for_nothing_and_keeps_what_was_paid(written: Project, api: MessagesEmulator) -> None:
    before, memo = contexts(written), written.pipeline().store.count(MEMO)
    planned = refresh_costs(written.pipeline()).contexts
    assert (planned.wanted, planned.chosen.calls) == (0, 0)
    assert written.pipeline().store.count(MEMO) == memo, "a plan writes nothing"
    summary = written.refresh()
    assert (summary.calls, summary.usd, summary.contexts["fallback"]) == (0, 0, 0)
    assert not api.bill.entries
    assert written.pipeline().store.count(MEMO) >= memo
    kept = {context.partition("\n")[0] for context in contexts(written)}  # below it, the header row of a table
    assert kept <= set(before)
    assert len(kept) > 0.9 * len(set(before))
    assert not written.pipeline().plan().owed
    assert SearchIndex.open(written.settings.storage.uri, written.settings).search(QUESTION)


def test_an_edit_after_it_pays_for_its_own_windows(written: Project, api: MessagesEmulator) -> None:
    written.refresh()
    path = written.docs / "handbook.md"
    path.write_text(path.read_text().replace("Rule 3 of part 17", "Rule three of part 17"))
    summary = written.refresh()
    assert 0 < summary.calls < chunks(written, "docs/handbook.md")


def test_an_edit_before_it_pays_for_its_own_windows(written: Project, api: MessagesEmulator) -> None:
    path = written.docs / "handbook.md"
    path.write_text(path.read_text().replace("Rule 3 of part 17", "Rule three of part 17"))
    summary = written.refresh()
    assert 0 < summary.calls < chunks(written, "docs/handbook.md")


def test_nothing_is_asked_again_until_told_to(
    written: Project, api: MessagesEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    written.refresh()
    monkeypatch.setattr(parse, "VERSION", parse.VERSION + 1)
    assert written.refresh().calls == 0
    counts = index_status(written.pipeline())["contexts"]
    assert not api.bill.entries
    planned = refresh_costs(written.pipeline(), renew=True).contexts
    assert planned.wanted == counts.get("earlier wording", 0) + counts.get("pending", 0)
    summary = written.refresh(renew=True)
    assert summary.calls == planned.chosen.calls == len(api.bill.answered)
    assert "earlier wording" not in index_status(written.pipeline())["contexts"]
    assert written.refresh(renew=True).run_id
    assert len(api.bill.answered) == summary.calls


GUIDE = "# Guide\n\n" + "\n\n".join(
    f"## Part {part}\n\n### Rules\n\nRule {part} holds. {'Word. ' * 60}" for part in range(4)
)


def upgraded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if another version of this program wrote other contexts without a model."""
    monkeypatch.setattr(outline, "VERSION", outline.VERSION + 1)
    monkeypatch.setattr(outline, "SEPARATOR", " > ")


def rows(project: Project) -> list[tuple[str, str, list[float]]]:
    return [(row["chunk_id"], row["context"], list(row["vector"])) for row in project.search_rows()]


def test_vectors_that_cost_nothing_follow_an_upgrade(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write("guide.md", GUIDE)
    first = project.refresh()
    upgraded(monkeypatch)
    assert project.refresh().embedded == first.embedded


def test_vectors_that_have_a_price_wait_for_the_word_of_the_user(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EmbeddingSettings, "is_paid", True)
    path = project.write("guide.md", GUIDE)
    first = project.refresh()
    upgraded(monkeypatch)
    summary = project.refresh()
    assert (summary.embedded, summary.reused) == (0, first.embedded)
    assert all(" > " in context for _, context, _ in rows(project))
    path.write_text(GUIDE.replace("Rule 2 holds", "Rule two holds"))
    assert project.refresh().embedded == 1, "an edit embeds what it changed, and nothing else"
    assert not project.pipeline().plan().owed
    assert any("vectors of an earlier version" in line for line in refresh_costs(project.pipeline()).advice)
    assert project.refresh(renew=True).embedded == first.embedded - 1
    kept = rows(project)
    assert not project.pipeline().plan(RefreshOptions(renew=True)).owed
    project.write_settings(storage={"uri": str(project.root / "fresh")})
    project.refresh()
    assert rows(project) == kept
