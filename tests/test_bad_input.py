"""Bad input: each is indexed right, or fails alone with its reason, and the next refresh is quiet about it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ctx_pipeline.index.search import SearchIndex
from tests.project import Project, age

INDEXED = {
    "bom.md": ("\ufeff# Título\n\nCon marca.\n".encode(), "# Título\n\nCon marca."),
    "crlf.md": (b"# Title\r\n\r\nLine one.\r\nLine two.\r\n", "# Title\r\n\r\nLine one.\r\nLine two."),
    "cr.txt": (b"old mac\rlines", "old mac\rlines"),
    "utf16.txt": ("Año nuevo".encode("utf-16"), "Año nuevo"),
    "special.md": (b"Before <|endoftext|> after <|fim_prefix|>.", "Before <|endoftext|> after <|fim_prefix|>."),
    "separators.txt": ("a\u2028b\u0085c\x0bd\x0ce".encode(), "a\u2028b\u0085c\x0bd\x0ce"),
    "odd.md": ("￿ 𝕬 👩‍👩‍👧 \u202e\u0600".encode(), "￿ 𝕬 👩‍👩‍👧 \u202e\u0600"),
}
FAILED = {
    "latin1.md": (b"facturaci\xf3n", "not valid UTF-8: invalid continuation byte at byte 9"),
    "truncated.md": (b"\xc3", "not valid UTF-8: unexpected end of data at byte 0"),
    "binary.md": (b"\x00\x01\x02PNG", "a NUL character at offset 0"),
    "large.txt": (b"x " * 600_000, "more than the 1,000,000 of its source's max_bytes"),
}
NAMES = [
    "with space.md", "comma,semi;colon.md", "percent%20sign%.md", "quote'double\".md", "new\nline.md", "emoji 🦉.md",
    "dots...md.md", "x...md", "[a...b].md", "back\\slash.md", "#hash?.md", "trailing .md", "ünïcode/ñandú.md", "%2F.md",
    "tab\there.md", "a" * 200 + ".md", "$(touch x).md", "--help.md", "{curly}.md", "*star*.md",
]  # fmt: skip


@pytest.fixture
def limited(project: Project) -> Project:
    project.source_lines += "max_bytes = 1_000_000\n"
    project.write_settings()
    return project


@pytest.mark.parametrize("name", INDEXED)
def test_unusual_text_is_indexed_as_it_is(name: str, limited: Project) -> None:
    data, text = INDEXED[name]
    limited.write(name, data)
    assert limited.refresh().failures == {}
    assert [row["text"] for row in limited.search_rows()] == [text]


@pytest.mark.parametrize("name", FAILED)
def test_what_is_no_text_fails_alone_with_its_reason_and_only_once(name: str, limited: Project) -> None:
    data, reason = FAILED[name]
    limited.write(name, data)
    limited.write("good.md", "# Good\n\nText.\n")
    age(limited.docs)
    summary = limited.refresh()
    assert list(summary.failures) == [f"docs/{name}"]
    assert reason in summary.failures[f"docs/{name}"]
    assert limited.documents() == {"docs/good.md"}
    again = limited.refresh()
    assert again.failures == {}
    assert reason in again.standing[f"docs/{name}"]
    assert not limited.pipeline().plan().owed
    limited.write(name, "# Mended\n\nNow it is text.\n")
    assert limited.refresh().added + limited.refresh().unchanged == 3
    assert limited.documents() == {"docs/good.md", f"docs/{name}"}
    assert limited.refresh().standing == {}


@pytest.mark.parametrize("data", [b"", b"\n\n  \t\r\n", b"\xef\xbb\xbf", "\u00a0\u3000\u2003".encode()])
def test_a_document_without_text_is_indexed_with_no_chunk(data: bytes, project: Project) -> None:
    project.write("empty.md", data)
    project.write("good.md", "# Good\n\nText.\n")
    summary = project.refresh()
    assert (summary.added, summary.failures) == (2, {})
    assert project.documents() == {"docs/good.md"}
    assert not project.pipeline().plan().owed


def test_a_document_that_becomes_empty_loses_its_rows(project: Project) -> None:
    project.write("a.md", "# A\n\nText.\n")
    project.refresh()
    project.write("a.md", "")
    project.refresh()
    assert project.search_rows() == []
    project.write("a.md", "# A\n\nText.\n")
    project.refresh()
    assert project.documents() == {"docs/a.md"}


def test_any_name_is_a_document_a_partition_and_can_be_removed(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate(NAMES):
        project.write(name, f"# Title {number}\n\nBody of {number}.\n")
    result, _ = project.dagster_refresh(monkeypatch)
    assert result.success
    doc_ids = {f"docs/{name}" for name in NAMES}
    assert project.documents() == project.keys() == doc_ids
    index = SearchIndex.open(project.settings.storage.uri, project.settings)
    for number, name in enumerate(NAMES):
        document = "doc_id = '" + f"docs/{name}".replace("'", "''") + "'"
        assert index.search("title", where=document)[0].text == f"# Title {number}\n\nBody of {number}."
    assert not project.pipeline().plan().owed
    for name in NAMES:
        (project.docs / name).unlink()
    result, _ = project.dagster_refresh(monkeypatch, allow_mass_delete=True)
    assert result.success
    assert project.documents() == project.keys() == set()


def test_a_partitioned_run_works_for_any_name(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    from ctx_pipeline.documents.model import partition_key

    for name in ("new\nline, [a...b] 100%.md", "quote'double\".md"):
        project.write(name, "# T\n\nBody.\n")
        with project.instance() as instance:
            instance.add_dynamic_partitions("documents", [partition_key(f"docs/{name}")])
        result = project.materialize(
            monkeypatch, "raw_documents", "chunks", "contexts", "search_index", key=partition_key(f"docs/{name}")
        )
        assert result.success
        assert f"docs/{name}" in project.documents()


def test_two_hundred_levels_deep(project: Project) -> None:
    deep = "/".join(["d"] * 200) + "/leaf.md"
    project.write(deep, "# Leaf\n\nDeep down.\n")
    project.refresh()
    assert project.documents() == {f"docs/{deep}"}


@pytest.mark.parametrize(
    "text",
    [
        "x" + " " * 1_000_000 + "y",
        "\n" * 1_000_000 + "end",
        "\u00a0" * 1_000_000 + "end",
        "<|endoftext|>" * 5_000,
        "> " * 20_000 + "deep",
        "[" * 50_000,
        "# " * 50_000,
    ],
    ids=["spaces", "newlines", "no-break spaces", "endoftext", "quotes", "brackets", "hashes"],
)
def test_pathological_text_is_indexed_whole(text: str, project: Project) -> None:
    project.write("odd.md", text)
    assert project.refresh().failures == {}
    found = "".join("".join(row["text"].split()) for row in project.search_rows())
    assert found == "".join(text.split())


def test_one_line_of_five_megabytes_is_indexed_whole(project: Project) -> None:
    words = [f"palabra{n}" for n in range(390_000)]
    text = " ".join(words)
    assert len(text) > 5_000_000
    project.write("line.txt", text)
    assert project.refresh().failures == {}
    assert [word for row in project.search_rows(("chunk_id", "text")) for word in row["text"].split()] == words


def test_links_out_of_the_source_and_loops_are_never_followed(project: Project, tmp_path: Path) -> None:
    secret = tmp_path / "secret.md"
    secret.write_text("# Secret\n")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "more.md").write_text("# More\n")
    project.write("real.md", "# Real\n\nText.\n")
    (project.docs / "out.md").symlink_to(secret)
    (project.docs / "folder").symlink_to(tmp_path / "outside")
    (project.docs / "loop").symlink_to(project.docs)
    (project.docs / "self.md").symlink_to("self.md")
    (project.docs / "alias.md").symlink_to("real.md")
    summary = project.refresh()
    assert project.documents() == {"docs/real.md", "docs/alias.md"}
    assert summary.skipped == 4


def test_a_file_swapped_for_a_link_out_of_the_source_is_not_read(project: Project, tmp_path: Path) -> None:
    secret = tmp_path / "outside"
    secret.mkdir()
    (secret / "a.md").write_text("# Secret\n\nPasswords.\n")
    project.write("folder/a.md", "# Mine\n\nText.\n")
    plan = project.pipeline().plan()
    shutil.rmtree(project.docs / "folder")
    (project.docs / "folder").symlink_to(secret)
    file = plan.work[0].file
    assert file is not None
    from ctx_pipeline.documents.files import read_bytes
    from ctx_pipeline.errors import TransientError

    with pytest.raises(TransientError, match="leads out of its source"):
        read_bytes(file, project.docs)


def test_an_unreadable_file_fails_now_and_is_tried_again(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write("a.md", "# A\n\nText.\n")
    project.write("b.md", "# B\n\nText.\n")
    real_open = os.open

    def deny(path, *arguments, **options):
        if str(path).endswith("b.md"):
            raise PermissionError(13, "Permission denied")
        return real_open(path, *arguments, **options)

    monkeypatch.setattr("ctx_pipeline.documents.source.os.open", deny)
    summary = project.refresh()
    assert "b.md cannot be read: Permission denied" in summary.failures["docs/b.md"]
    assert "docs/b.md" in project.refresh().standing, "it waits for its next try"
    monkeypatch.undo()
    summary = project.refresh(retry=True)
    assert summary.failures == summary.standing == {}
    assert project.documents() == {"docs/a.md", "docs/b.md"}


def test_an_unreachable_root_deletes_nothing_ever(project: Project) -> None:
    for n in range(30):
        project.write(f"d{n}.md", f"# D{n}\n\nText.\n")
    project.refresh()
    project.docs.rename(project.root / "unmounted")
    for options in ({}, {"allow_mass_delete": True}):
        summary = project.refresh(**options)
        assert summary.removed == 0
        assert "cannot be read" in summary.warnings[0]
    assert len(project.documents()) == 30


def test_mass_deletion_is_held_back_while_edits_go_on(project: Project) -> None:
    for n in range(30):
        project.write(f"d{n}.md", f"# D{n}\n\nText.\n")
    project.refresh()
    for n in range(1, 30):
        (project.docs / f"d{n}.md").unlink()
    project.write("d0.md", "# D0\n\nEdited.\n")
    project.write("new.md", "# New\n\nText.\n")
    summary = project.refresh()
    assert (summary.added, summary.changed, summary.removed) == (1, 1, 0)
    assert "--allow-mass-delete" in summary.warnings[0]
    assert len(project.documents()) == 31
    assert not project.pipeline().plan().owed, "a held-back deletion is no work for the sensor"
    assert project.refresh(allow_mass_delete=True).removed == 29
    assert project.documents() == {"docs/d0.md", "docs/new.md"}


def test_a_removed_source_and_a_narrowed_include_are_deletions(project: Project) -> None:
    for n in range(3):
        project.write(f"d{n}.md", f"# D{n}\n\nText.\n")
        project.write(f"n{n}.txt", f"Note {n}.\n")
    project.refresh()
    project.source_lines += 'include = ["*.md"]\n'
    project.write_settings()
    assert project.refresh().removed == 3
    project.source_lines = f'name = "other"\npath = "{project.docs}"\n'
    project.write_settings()
    summary = project.refresh()
    assert (summary.removed, summary.added, summary.embedded) == (3, 6, 3)


def test_an_edit_of_a_failed_document_is_seen_whatever_its_mtime(project: Project) -> None:
    path = project.write("x.md", b"hola \xff\xff mundo\n")
    age(project.docs, 3600)
    status = path.stat()
    assert list(project.refresh().failures) == ["docs/x.md"]
    path.write_bytes(b"hola aa  mundo\n"[: status.st_size].ljust(status.st_size))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert project.refresh().added == 1, "same size and mtime: its ctime tells"


def test_touching_a_failed_document_is_no_reason_to_try_it_again(project: Project) -> None:
    project.write("x.md", b"\x80")
    project.refresh()
    age(project.docs, 3600)
    summary = project.refresh()
    assert (summary.failures, list(summary.standing)) == ({}, ["docs/x.md"])


def test_front_matter_that_no_row_can_hold_fails_its_document_alone(project: Project) -> None:
    project.write("big.md", "---\nn: 0x" + "f" * 6000 + "\n---\n\n# T\n\nx\n")
    project.write("good.md", "# Good\n\nText.\n")
    assert list(project.refresh().failures) == ["docs/big.md"]
    assert project.documents() == {"docs/good.md"}
