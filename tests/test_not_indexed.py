"""Files that are no documents are told: by extension, some by name, in words, JSON and the UI."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctx_pipeline.documents.not_indexed import NAMED, NotIndexed, merged
from ctx_pipeline.documents.patterns import Include
from ctx_pipeline.documents.source import scan
from ctx_pipeline.settings import SourceSettings
from tests.project import Project

TEXT = "# Title\n\nText.\n"
FILES = ("a.pdf", "b.PDF", "sub/c.pdf", "d.docx", "e.docx", "README", "CHANGELOG", "old.mkd")


def test_words_begin_with_the_most_frequent_and_leave_nothing_uncounted() -> None:
    found = NotIndexed()
    for name in FILES:
        found.add(f"docs/{name}")
    assert found.words() == "8 files: 3 .pdf, 2 without extension, 2 .docx, 1 .mkd"
    for n in range(20):
        found.add(f"docs/x.e{n}")
    assert found.words().startswith("28 files: 3 .pdf, 2 without extension, 2 .docx, 1 .e0, 1 .e1")
    assert found.words().endswith(", 16 others")
    assert NotIndexed().words() == ""


@given(st.lists(st.lists(st.text(min_size=1).map(lambda name: f"docs/{name}"), max_size=30), max_size=4))
def test_every_file_is_counted_once_whatever_its_name(sources: list[list[str]]) -> None:
    found = []
    for names in sources:
        found.append(NotIndexed())
        for name in names:
            found[-1].add(name)
    every = merged(found)
    assert every.files == sum(map(len, sources))
    assert every.to_json()["files"] == sum(every.to_json()["by_extension"].values())


def test_names_are_bounded_and_the_count_is_not() -> None:
    found = NotIndexed()
    for n in range(3 * NAMED):
        found.add(f"docs/{n}.{n}")
    reply = found.to_json()
    assert (reply["files"], len(reply["names"]), len(reply["by_extension"])) == (3 * NAMED, NAMED, NAMED)
    assert len(merged([found, found]).names) == NAMED


def test_what_counts_is_a_regular_file_that_no_pattern_names_and_nobody_left_out(tmp_path: Path) -> None:
    for name in (
        "a.md",
        "b.pdf",
        "secret.pdf",
        ".hidden.pdf",
        ".git/c.pdf",
        "out/d.pdf",
        "node_modules/e.pdf",
        "f.log",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(TEXT)
    (tmp_path / ".gitignore").write_text("out/\n*.log\n")
    (tmp_path / "link.pdf").symlink_to("b.pdf")
    (tmp_path / "folder.pdf").mkdir()
    source = SourceSettings(name="docs", path=tmp_path, exclude=(".*", "secret.pdf"))
    assert scan(source, {}).not_indexed.names == ["docs/b.pdf"]
    negated = source.model_copy(update={"include": ("*.md", "*.pdf", "!b.pdf")})
    assert scan(negated, {}).not_indexed.names == [], "a pattern names it, to take it out"


# Extensions in either case ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("*.md", ["a.md", "a.MD", "a.Md", "sub/A.mD"], ["a.mdx", "md", "a.md.pdf"]),
        ("/docs/*.md", ["docs/Guide.MD"], ["Docs/a.md"]),
        ("README.md", ["README.MD"], ["readme.md"]),
        ("*.Txt", ["a.txt", "a.TXT"], ["a.text"]),
        ("docs/", ["docs/a.pdf"], ["DOCS/a.md"]),
        ("*.c[px]p", ["a.cpp"], ["a.CPP"]),
        ("*.md  ", ["a.MD"], []),
    ],
)
def test_the_extension_of_a_pattern_matches_in_either_case_and_nothing_else_does(
    pattern: str, matching: list[str], other: list[str]
) -> None:
    include, exact = Include([pattern], any_case=True), Include([pattern])
    assert [name for name in matching + other if include.matches(name)] == matching
    assert all(include.matches(name) for name in matching + other if exact.matches(name)), (
        "none that did before is lost"
    )


def test_extensions_in_any_case_are_documents_by_default_and_the_rest_is_counted(tmp_path: Path) -> None:
    for name in ("Guía.MD", "LEEME.TXT", "Intro.Md", "notes.markdown", "README", "old.mkd", "data.adoc"):
        (tmp_path / name).write_text(TEXT)
    found = scan(SourceSettings(name="docs", path=tmp_path), {})
    assert set(found.files) == {"docs/Guía.MD", "docs/LEEME.TXT", "docs/Intro.Md", "docs/notes.markdown"}
    assert found.not_indexed.words() == "3 files: 1 without extension, 1 .adoc, 1 .mkd"


def test_rules_of_contexts_match_as_they_did() -> None:
    assert not Include(["*.md"]).matches("a.MD"), "an upgrade asks a model for nothing"


# Where it is told ----------------------------------------------------------------------------------------------------


def test_commands_tell_it_also_when_nothing_is_owed(project: Project) -> None:
    project.write("a.md", TEXT)
    for name in ("b.pdf", "c.docx", "d\x1b[31m.pdf"):
        project.write(name, b"\x00")
    line = "not indexed: 3 files: 2 .pdf, 1 .docx"
    assert line in project.command("refresh", "--dry-run").stdout.splitlines()
    assert line in project.command("refresh").stdout.splitlines()
    again = project.command("refresh")
    assert "nothing to do" in again.stdout
    assert line in again.stdout.splitlines()
    status = project.command("status")
    assert line in status.stdout.splitlines()
    assert "           docs/c.docx" in status.stdout.splitlines()
    assert "\x1b" not in status.stdout
    assert status.returncode == 0, "told, and no problem"
    for command in (["refresh"], ["status"], ["refresh", "--dry-run"], ["plan"]):
        reply = json.loads(project.command(*command, "--json").stdout)["not_indexed"]
        assert (reply["files"], reply["by_extension"]) == (3, {".pdf": 2, ".docx": 1})
        assert "docs/b.pdf" in reply["names"]


def test_the_ui_tells_it_and_names_what_was_removed(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.md", "b.md", "c.md"):
        project.write(name, TEXT + name)
    project.write("d.pdf", b"\x00")
    project.dagster_refresh(monkeypatch)
    (project.docs / "b.md").unlink()
    result, report = project.dagster_refresh(monkeypatch)
    [event] = result.get_asset_materialization_events()
    metadata = event.materialization.metadata
    assert metadata["files_not_indexed"].value == 1
    assert metadata["not_indexed"].value == "1 file: 1 .pdf"
    assert metadata["removed"].value == "- docs/b.md"
    assert report.summary is not None
    assert report.summary.to_json()["removed"] == ["docs/b.md"]


def test_the_command_line_names_what_it_removed(project: Project) -> None:
    for n in range(14):
        project.write(f"{n:02}.md", TEXT + str(n))
    project.refresh()
    for n in range(12):
        (project.docs / f"{n:02}.md").unlink()
    lines = project.command("refresh").stdout.splitlines()
    assert "removed    docs/00.md" in lines
    assert "removed    … and 2 more" in lines
