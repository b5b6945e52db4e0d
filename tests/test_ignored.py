"""What a source leaves out: what .gitignore says as git reads it, and folders of tools; and what becomes of documents
that were indexed before."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctx_pipeline.documents import source as source_module
from ctx_pipeline.documents.ignored import GitIgnore
from ctx_pipeline.documents.source import SourceScan, scan
from ctx_pipeline.index.schemas import LEDGER
from ctx_pipeline.settings import SourceSettings
from tests.project import Project

TEXT = "# Title\n\nText.\n"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def look(root: Path, **options: Any) -> SourceScan:
    return scan(SourceSettings(name="docs", path=root, **options), {})


def names(found: SourceScan) -> set[str]:
    return {doc_id.removeprefix("docs/") for doc_id in found.files}


# .gitignore --------------------------------------------------------------------------------------------------------


def test_the_files_at_and_below_the_root_say_what_is_left_out_each_for_its_folder(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            ".gitignore": "build/\n*.tmp.md\n!keep.tmp.md\n",
            "a.md": TEXT,
            "b.tmp.md": TEXT,
            "keep.tmp.md": TEXT,
            "build/c.md": TEXT,
            "sub/build/d.md": TEXT,
            "sub/.gitignore": "/only-here.md\n!e.tmp.md\n",
            "sub/only-here.md": TEXT,
            "sub/deeper/only-here.md": TEXT,
            "sub/e.tmp.md": TEXT,
            "other/e.tmp.md": TEXT,
        },
    )
    found = look(tmp_path)
    assert names(found) == {"a.md", "keep.tmp.md", "sub/deeper/only-here.md", "sub/e.tmp.md"}
    assert found.ignored == {
        "docs/b.tmp.md": ".gitignore",
        "docs/build": ".gitignore",
        "docs/other/e.tmp.md": ".gitignore",
        "docs/sub/build": ".gitignore",
        "docs/sub/only-here.md": "sub/.gitignore",
    }


def test_an_ignored_folder_is_not_entered_and_nothing_in_it_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {".gitignore": "out\n!out/a.md\n", "out/a.md": TEXT, "out/.gitignore": "!*\n", "b.md": TEXT})
    listed: list[str] = []
    real = source_module._list
    monkeypatch.setattr(source_module, "_list", lambda folder: [listed.append(folder.name), real(folder)][1])
    assert names(look(tmp_path)) == {"b.md"}
    assert "out" not in listed


def test_a_file_above_the_root_is_not_read_and_the_root_is_never_left_out(tmp_path: Path) -> None:
    root = tmp_path / "node_modules"
    write(tmp_path, {".gitignore": "*\n", "node_modules/a.md": TEXT, "node_modules/pyvenv.cfg": ""})
    assert names(look(root)) == {"a.md"}


def test_a_setting_turns_gitignore_off_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path, {".gitignore": "*.md\n", "a.md": TEXT, "node_modules/b.md": TEXT})
    assert names(look(tmp_path)) == set()
    assert names(look(tmp_path, gitignore=False)) == {"a.md"}


def test_an_exclude_pattern_with_an_exclamation_mark_has_the_last_word(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            ".gitignore": "build/\nb.md\n",
            "build/a.md": TEXT,
            "b.md": TEXT,
            "node_modules/x/c.md": TEXT,
            "env/pyvenv.cfg": "",
            "env/d.md": TEXT,
        },
    )
    assert names(look(tmp_path)) == set()
    kept = look(tmp_path, exclude=[".*", "!build", "!/b.md", "!node_modules", "!env"])
    assert names(kept) == {"build/a.md", "node_modules/x/c.md", "env/d.md"} | {"b.md"}


@pytest.mark.parametrize(
    "lines",
    [
        b"\xef\xbb\xbfgone.md\r\n",
        b"# gone?\ngone.md   \n",
        b"!\n/\n[z-a]\ngone.md",
        b"gone.m[d]\0\ngone.md\n",
        b"\xff\xfe\ngone.md",
    ],
    ids=["mark and CRLF", "comment and spaces", "no patterns", "NUL", "not UTF-8"],
)
def test_any_bytes_are_read_as_git_reads_them(tmp_path: Path, lines: bytes) -> None:
    write(tmp_path, {"gone.md": TEXT, "stays.md": TEXT})
    (tmp_path / ".gitignore").write_bytes(lines)
    assert names(look(tmp_path)) == {"stays.md"}


def test_a_name_that_is_not_utf8_is_left_out_by_its_bytes(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.md")).write_text(TEXT)
    (tmp_path / ".gitignore").write_bytes(b"caf\xe9.md\n")
    found = look(tmp_path)
    assert (found.skipped, list(found.ignored)) == ({}, ["docs/caf\\udce9.md"])


def test_a_gitignore_that_is_no_regular_file_says_nothing(tmp_path: Path) -> None:
    write(tmp_path, {"sub/a.md": TEXT, "link/b.md": TEXT, "folder/c.md": TEXT, "patterns": "*.md\n"})
    os.mkfifo(tmp_path / "sub/.gitignore")
    (tmp_path / "link/.gitignore").symlink_to("../patterns")
    (tmp_path / "folder/.gitignore").mkdir()
    found = look(tmp_path)
    assert names(found) == {"sub/a.md", "link/b.md", "folder/c.md"}
    assert found.unreadable == {}


@pytest.mark.parametrize("place", ["", "sub/"])
def test_an_unreadable_gitignore_makes_its_folder_unreadable(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"a.md": TEXT, "sub/b.md": TEXT, f"{place}.gitignore": "x\n"})
    real = os.open

    def denied(path: Any, *arguments: Any, **options: Any) -> int:
        if os.fspath(path).endswith(".gitignore"):
            raise PermissionError(13, "Permission denied")
        return real(path, *arguments, **options)

    monkeypatch.setattr(source_module.os, "open", denied)
    found = look(tmp_path)
    assert not found.covers("docs/sub/b.md")
    assert found.covers("docs/gone.md") == bool(place)
    reason = found.unreadable.get("docs/sub", found.unreachable)
    assert ".gitignore: Permission denied" in reason


def test_patterns_that_would_take_an_expression_beyond_any_time_name_nothing(tmp_path: Path) -> None:
    write(tmp_path, {"axbxcxd.md": TEXT, "axbxc.md": TEXT, "a/a/a/a/b.md": TEXT, "stays.md": TEXT})
    (tmp_path / ".gitignore").write_text("a*b*c*d*\n**/a/**/a/**/a/**/b.md\na*b*c*.txt\n")
    assert len(names(look(tmp_path))) == 4
    (tmp_path / ".gitignore").write_text("a*b*c*\n**/a/**/a/**/b.md\n")
    assert names(look(tmp_path)) == {"stays.md"}


def test_a_pattern_of_folders_below_a_folder_names_not_the_folder_itself(tmp_path: Path) -> None:
    write(tmp_path, {".gitignore": "sub/**/\n", "sub/a.md": TEXT, "sub/deep/b.md": TEXT})
    assert names(look(tmp_path)) == {"sub/a.md"}


NAME = st.sampled_from(["a", "b", "build", "a.md", "b.md", "c.log", "keep.log", "x~", "new\nline"])
SEGMENT = st.sampled_from(
    ["a", "b", "build", "*.md", "*.log", "*", "**", "a*", "?.md", "[ab].md", "[!a].md", "*b*", "keep.log", "*~", "\\a"]
)
PATTERN = st.builds(
    lambda negated, first, segments, last: negated + first + "/".join(segments) + last,
    st.sampled_from(["", "", "!"]),
    st.sampled_from(["", "", "/"]),
    st.lists(SEGMENT, min_size=1, max_size=3),
    st.sampled_from(["", "", "/"]),
)


@pytest.mark.skipif(shutil.which("git") is None, reason="compares with git, which is not here")
@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(NAME, min_size=1, max_size=3), min_size=3, max_size=12),
    st.lists(st.tuples(st.lists(NAME, max_size=2), st.lists(PATTERN, min_size=1, max_size=5)), max_size=3),
)
def test_what_is_left_is_what_git_lists(paths: list[list[str]], ignores: list[tuple[list[str], list[str]]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        subprocess.run(["git", "init", "-q", name], check=True)
        for parts in paths:
            if not any(parent.is_file() for parent in root.joinpath(*parts).parents):
                root.joinpath(*parts).parent.mkdir(parents=True, exist_ok=True)
                if not root.joinpath(*parts).is_dir():
                    root.joinpath(*parts).write_text("x")
        for folder, patterns in ignores:
            if root.joinpath(*folder).is_dir():
                (root.joinpath(*folder) / ".gitignore").write_text("\n".join(patterns) + "\n")
        command = ["git", "-C", name, "ls-files", "-o", "-z", "--exclude-per-directory=.gitignore"]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
        expected = {path for path in listed if path and not path.endswith(".gitignore")}
        assert names(look(root, include=["*"], exclude=[".git", ".gitignore"])) == expected


# Folders of tools ----------------------------------------------------------------------------------------------------


def test_folders_of_tools_are_left_out_by_their_name_or_by_what_they_hold(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "node_modules/left/README.md": TEXT,
            "app/node_modules/right/README.md": TEXT,
            "app/__pycache__/a.md": TEXT,
            "my env/pyvenv.cfg": "home = /usr\n",
            "my env/lib/b.md": TEXT,
            "cache/CACHEDIR.TAG": "Signature: 8a477f597d28d172789f06886806bc55\n",
            "cache/c.md": TEXT,
            "docs/node_modules.md": TEXT,
            "venv/about.md": TEXT,
        },
    )
    found = look(tmp_path)
    assert names(found) == {"docs/node_modules.md", "venv/about.md"}
    assert found.ignored == {
        "docs/node_modules": "a folder named node_modules",
        "docs/app/node_modules": "a folder named node_modules",
        "docs/app/__pycache__": "a folder named __pycache__",
        "docs/my env": "it holds pyvenv.cfg",
        "docs/cache": "it holds CACHEDIR.TAG",
    }


# Documents that were indexed before ----------------------------------------------------------------------------------


def left_out(root: Path, *known: str, **options: Any) -> dict[str, str]:
    indexed = {f"docs/{name}": Remembered() for name in known}
    return scan(SourceSettings(name="docs", path=root, **options), indexed).left_out


class Remembered:
    size = mtime_ns = read_at_ns = 0
    ctime_ns = None


def test_documents_that_are_there_are_told_from_deleted_ones_and_from_what_the_settings_leave_out(
    tmp_path: Path,
) -> None:
    write(tmp_path, {".gitignore": "build\ntop.md\n", "build/a.md": TEXT, "build/x/b.md": TEXT, "build/c.txt": TEXT})
    write(tmp_path, {"top.md": TEXT, "stays.md": TEXT})
    known = ["build/a.md", "build/x/b.md", "build/c.txt", "build/gone.md", "top.md", "stays.md", "gone.md"]
    every = {"build/a.md", "build/x/b.md", "build/c.txt", "top.md"}
    assert set(left_out(tmp_path, *known)) == {f"docs/{name}" for name in every}
    assert set(left_out(tmp_path, *known, include=["*.txt"])) == {"docs/build/c.txt"}
    assert set(left_out(tmp_path, *known, exclude=["x", "top.md"])) == {"docs/build/a.md", "docs/build/c.txt"}
    assert left_out(tmp_path, *known, exclude=["build"], gitignore=False) == {}


def test_documents_that_the_ledger_lost_count_as_well(tmp_path: Path) -> None:
    write(tmp_path, {"node_modules/a.md": TEXT})
    found = scan(SourceSettings(name="docs", path=tmp_path), {}, orphans=["docs/node_modules/a.md", "other/a.md"])
    assert list(found.left_out) == ["docs/node_modules/a.md"]


def test_what_a_gitignore_leaves_out_later_stays_indexed_until_it_is_allowed_to_go(project: Project) -> None:
    for name in ("build/a.md", "build/b.md", "c.md"):
        project.write(name, TEXT + name)
    project.refresh()
    project.write(".gitignore", "build/\n")
    project.write("c.md", TEXT + "edited")
    summary = project.refresh()
    assert (summary.changed, summary.removed) == (1, 0)
    [warning] = summary.warnings
    assert "docs/build/a.md (.gitignore), docs/build/b.md (.gitignore)" in warning
    assert project.documents() == {"docs/build/a.md", "docs/build/b.md", "docs/c.md"}
    assert not project.pipeline().plan().owed, "a held-back deletion is no work for the sensor"
    (project.docs / "build/a.md").unlink()
    gone = project.refresh()
    assert (gone.removed, gone.removed_documents) == (1, ["docs/build/a.md"]), "a deleted file is deleted"
    assert project.refresh(allow_mass_delete=True).removed_documents == ["docs/build/b.md"]
    assert project.documents() == {"docs/c.md"}


def test_a_lost_ledger_makes_no_difference_to_what_is_held_back(project: Project) -> None:
    project.source_lines += 'exclude = [".*", "!node_modules"]\n'
    project.write_settings()
    for name in ("node_modules/a.md", "b.md"):
        project.write(name, TEXT + name)
    project.refresh()
    project.pipeline().store.drop(LEDGER)
    project.source_lines = project.source_lines.replace('exclude = [".*", "!node_modules"]\n', "")
    project.write_settings()
    summary = project.refresh()
    assert summary.removed == 0
    assert any("docs/node_modules/a.md (a folder named node_modules)" in warning for warning in summary.warnings)
    assert project.documents() == {"docs/node_modules/a.md", "docs/b.md"}


def test_the_words_of_the_user_s_exclude_are_carried_out_at_once(project: Project) -> None:
    for name in ("build/a.md", "c.md"):
        project.write(name, TEXT + name)
    project.refresh()
    project.write(".gitignore", "build/\n")
    project.source_lines += 'exclude = [".*", "build"]\n'
    project.write_settings()
    assert project.refresh().removed_documents == ["docs/build/a.md"]


def test_a_source_whose_files_are_all_left_out_says_so(project: Project) -> None:
    project.write(".gitignore", "*\n")
    project.write("a.md", TEXT)
    [warning] = project.refresh().warnings
    assert "no file below" in warning
    assert "left out: docs/a.md, .gitignore" in warning


def test_no_gitignore_file_says_nothing() -> None:
    assert GitIgnore().names("a/b.md", folder=False) == ""
