"""Files with any name pass every command, Dagster and a deletion; a name never acts as SQL, markup or a control."""

from __future__ import annotations

import json
from typing import Any

import dagster as dg
import pytest
from markdown_it import MarkdownIt

from ctx_pipeline.documents.model import doc_id_of, partition_key
from ctx_pipeline.escaping import one_line
from ctx_pipeline.index.search import SearchIndex
from ctx_pipeline.index.tables import id_filter
from tests.project import Project

NAMES = [
    "a'b.md", "a''b.md", "100%.md", "100%25.md", "a\nb.md", "[a...b].md", "a.. .md", "a\\b.md", "a\\'b.md", 'a"b.md',
    "🦉👩‍👩‍👧.md", "שלום عربي.md", "\u202egnp.md", "é" * 126 + ".md", "x" * 252 + ".md",
    "\x1b]0;title\x07.md", "\x1b[2J\x1b[H.md", "\r forged.md", "\u2066isolate.md", "\x9b31m.md", "\ufeffmark.md",
    "[x](javascript:alert)|`a`<img src=x>.md", "www.e.example|x.md", "me@e.example.md", "-- ;drop table ledger.md",
    "$(id)`id`.md", "_underlined_ *bold*.md", "# head.md", "a, b.md", "{0}.md", "%s%n.md",
]  # fmt: skip
BAD = ["bad\nfailed: docs/forged.md: nothing.md", "bad [x](www.e.example)|`a`<img src=x>.md", "bad\x1b[31m\u202e.md"]


@pytest.fixture
def hostile(project: Project) -> Project:
    for number, name in enumerate(NAMES):
        project.write(name, f"# Title {number}\n\nBody of number{number}.\n")
    for name in BAD:
        project.write(name, b"\x80")
    return project


def test_every_command_prints_names_as_data(hostile: Project) -> None:
    refreshed = hostile.command("refresh")
    assert refreshed.returncode == 1
    failed = [line for line in refreshed.stderr.splitlines() if line.startswith("failed:")]
    assert {line.split(": ")[1] for line in failed} >= {one_line(f"docs/{name}") for name in BAD[1:]}
    assert len(failed) == len(BAD), "one line for each"
    printed = [refreshed]
    for arguments in (
        ["refresh", "--dry-run"],
        ["status"],
        ["doctor"],
        ["search", "body number", "-k", "50"],
        ["show", "no such"],
    ):
        printed.append(hostile.command(*arguments))
    printed += [hostile.command("show", f"docs/{name}") for name in NAMES[:3] + NAMES[12:20]]
    for done in printed:
        output = done.stdout + done.stderr
        assert "Traceback" not in output
        assert not [c for c in output if (ord(c) < 32 and c != "\n") or 0x7F <= ord(c) < 0xA0 or c in "\u202e\u2066"]
    assert not any(line.startswith("failed: docs/forged.md") for done in printed for line in done.stdout.splitlines())


def test_json_names_documents_exactly(hostile: Project) -> None:
    hostile.refresh()
    found = hostile.command("search", "body number", "-k", "60", "--json")
    assert {hit["doc_id"] for hit in json.loads(found.stdout)} == {f"docs/{name}" for name in NAMES}
    assert found.stdout.count("\n") == 1
    failed = json.loads(hostile.command("status", "--json").stdout)["failed"]
    assert set(failed) == {f"docs/{name}" for name in BAD}


@pytest.mark.parametrize("name", NAMES)
def test_a_filter_on_a_name_finds_that_document_alone(name: str, shared_index: SearchIndex) -> None:
    hits = shared_index.search("body number", k=60, where=id_filter("doc_id", [f"docs/{name}"]))
    assert [hit.doc_id for hit in hits] == [f"docs/{name}"]


@pytest.fixture(scope="module")
def shared_index(tmp_path_factory: pytest.TempPathFactory) -> SearchIndex:
    project = Project(tmp_path_factory.mktemp("names") / "project")
    for number, name in enumerate(NAMES):
        project.write(name, f"# Title {number}\n\nBody of number{number}.\n")
    project.refresh()
    return SearchIndex.open(project.settings.storage.uri, project.settings)


def test_dagster_shows_names_and_reasons_and_obeys_nothing_in_them(
    hostile: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, _ = hostile.dagster_refresh(monkeypatch)
    assert not result.success, "some documents failed"
    assert hostile.documents() == {f"docs/{name}" for name in NAMES}
    assert hostile.keys() == {f"docs/{name}" for name in NAMES + BAD}
    partitions = {partition for partition, _ in hostile.events()["search_index"]}
    assert {doc_id_of(key) for key in partitions} == {f"docs/{name}" for name in NAMES}
    with hostile.instance() as instance:
        events = instance.all_logs(result.run_id)
    shown = [value for event in events for value in _markdown_of(event)]
    assert shown
    for text in shown:
        html = MarkdownIt("commonmark").enable("table").render(text)
        assert "<img" not in html and "<a " not in html, text
    lists = [text for text in shown if "javascript" not in text and "bad" in text]
    assert any(text.count("\n") == len(BAD) - 1 for text in lists), "one line for each document that failed"
    messages = [event.message or "" for event in events if " failed (" in (event.message or "")]
    assert len(messages) == len(BAD) and not any("\n" in message or "\x1b" in message for message in messages)


def _markdown_of(event: dg.EventLogEntry) -> list[str]:
    """The Markdown metadata of an event: of a materialization, or of a check."""
    told: list[Any] = []
    if event.asset_materialization is not None:
        told.append(event.asset_materialization.metadata)
    data = event.dagster_event.event_specific_data if event.dagster_event else None
    if isinstance(data, dg.AssetCheckEvaluation):
        told.append(data.metadata)
    values = [value for metadata in told for value in metadata.values()]
    return [str(value.value) for value in values if isinstance(value, dg.MarkdownMetadataValue)]


def test_a_partition_key_of_any_name_materializes_and_deletes(
    hostile: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile.dagster_refresh(monkeypatch)
    for name in ("\x1b[2J\x1b[H.md", "\u202egnp.md", "a\\'b.md"):
        assert hostile.materialize(monkeypatch, "contexts", "search_index", key=partition_key(f"docs/{name}")).success
    for name in NAMES[::2]:
        (hostile.docs / name).unlink()
    hostile.dagster_refresh(monkeypatch)
    assert hostile.documents() == {f"docs/{name}" for name in NAMES[1::2]}
    assert hostile.keys() == {f"docs/{name}" for name in NAMES[1::2] + BAD}
