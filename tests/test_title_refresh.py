"""Titles and front matter in refreshes: what a rename and a new release cost, and where front matter is told of."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.emulators.messages import KEY, MessagesEmulator
from tests.project import Project


def release(number: int, items: int = 2) -> str:
    lines = (f"- The {word} of release {number} no longer stops at night." for word in ("loader", "viewer")[:items])
    return f"# 9.{number}.0\n\n### Fixes\n\n" + "\n".join(lines) + "\n\n"


def history(newest: int, size: int = 20) -> str:
    return "".join(release(number) for number in range(newest, newest - size, -1))


@pytest.fixture
def api(project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[MessagesEmulator]:
    """What the project's contexts are asked of."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    project.write_settings(contexts={"method": "claude"}, chunking={"max_tokens": 96})
    with MessagesEmulator() as emulator:
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", emulator.url)
        yield emulator


def contexts(project: Project) -> dict[str, str]:
    return {row["text"].splitlines()[-1]: row["context"] for row in project.search_rows()}


def test_a_release_added_on_top_of_a_changelog_embeds_that_release_only(project: Project) -> None:
    project.write("history.md", history(20))
    before = project.refresh()
    assert (before.embedded, before.reused) == (20, 0)
    project.write("history.md", release(21) + history(20))
    after = project.refresh()
    assert (after.embedded, after.reused) == (1, 20)
    found = contexts(project)
    assert found["- The viewer of release 21 no longer stops at night."] == "history › 9.21.0 › Fixes"
    assert found["- The viewer of release 20 no longer stops at night."] == "history › 9.20.0 › Fixes"


def test_a_release_added_on_top_of_a_changelog_asks_about_the_windows_that_it_touches(
    project: Project, api: MessagesEmulator
) -> None:
    project.write_settings(contexts={"method": "claude", "window_tokens": 1_000}, chunking={"max_tokens": 96})
    project.write("history.md", history(120, 120))
    chunks = project.refresh().contexts["written"]
    project.write("history.md", release(121) + history(120, 120))
    added = project.refresh().contexts
    assert added["written"] < chunks / 2
    assert added["reused"] > chunks / 2


@pytest.mark.parametrize(
    "text", ["## Options\n\nAny height.\n\n## Sorting\n\nBy name.\n", history(5, 5)], ids=["no title", "releases"]
)
def test_a_renamed_document_without_a_title_asks_the_model_for_nothing(
    project: Project, api: MessagesEmulator, text: str
) -> None:
    path = project.write("board.md", text)
    assert project.refresh().calls > 0
    before = contexts(project)
    path.rename(project.docs / "ledger.md")
    renamed = project.refresh()
    assert (renamed.calls, renamed.contexts["written"], renamed.usd) == (0, 0, 0)
    assert contexts(project) == before
    assert {row["title"] for row in project.search_rows()} == {"ledger"}


def test_a_renamed_document_without_a_title_is_embedded_with_its_new_name(project: Project) -> None:
    path = project.write("board.md", "## Options\n\nAny height.\n")
    project.refresh()
    path.rename(project.docs / "ledger.md")
    renamed = project.refresh()
    assert (renamed.embedded, renamed.reused) == (1, 0)
    assert [row["context"] for row in project.search_rows()] == ["ledger › Options"]


def test_a_document_of_front_matter_alone_has_no_chunks_and_is_whole(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("section.md", "---\ntitle: A section\n---\n")
    result, _ = project.dagster_refresh(monkeypatch)
    assert (result.success, project.search_rows()) == (True, [])
    assert not project.pipeline().plan().owed
    assert project.materialize(monkeypatch, "contexts", "search_index", key="docs/section.md").success
    shown = project.command("show", "section.md")
    assert (shown.returncode, shown.stdout) == (0, "the document has no text, or front matter alone: no chunks\n")


def test_front_matter_that_was_mended_is_told_where_a_person_looks(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("a.md", "---\ntitle: Limits\ntags: [a, b\nowner: ops\n---\n\nText.\n")
    project.write("good.md", "---\ntitle: Fine\n---\n\nText.\n")
    warning = "left out: `tags` (line 3)"
    refreshed = project.command("refresh")
    assert refreshed.returncode == 0
    [line] = [line for line in refreshed.stderr.splitlines() if warning in line]
    assert line.startswith("docs/a.md: front matter is not valid YAML")
    shown = project.command("show", "a.md", "--json")
    assert warning in shown.stderr
    assert [row["text"] for row in json.loads(shown.stdout)] == ["Text."]
    assert project.command("show", "good.md").stderr == ""
    assert {json.loads(row["metadata"])["title"]: row["title"] for row in project.search_rows()} == {
        "Limits": "Limits",
        "Fine": "Fine",
    }
    import dagster as dg

    with project.instance() as instance:
        records = instance.fetch_materializations(dg.AssetKey("raw_documents"), limit=2).records
    told = {
        record.asset_materialization.partition: "warnings" in record.asset_materialization.metadata
        for record in records
        if record.asset_materialization
    }
    assert told == {"docs/a.md": True, "docs/good.md": False}
