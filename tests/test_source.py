"""The scan finds every document and every change of one, and takes nothing for deleted that it could not see."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctx_pipeline.documents import source as source_module
from ctx_pipeline.documents.files import content_hash, read_bytes
from ctx_pipeline.documents.source import RACY_NS, FoundFile, SourceScan, scan
from ctx_pipeline.errors import PermanentError, TransientError
from ctx_pipeline.settings import SourceSettings

HOUR_NS = 3_600_000_000_000


@dataclass
class Remembered:
    """What the ledger keeps of a file that was read."""

    size: int
    mtime_ns: int
    read_at_ns: int
    content_hash: str
    ctime_ns: int | None


@dataclass
class Folder:
    """A source on disk, and what was read from it so far."""

    root: Path
    options: dict[str, Any] = field(default_factory=dict)
    known: dict[str, Remembered] = field(default_factory=dict)

    @property
    def source(self) -> SourceSettings:
        return SourceSettings(name="docs", path=self.root, **self.options)

    def write(self, name: str, data: bytes, *, age_ns: int = HOUR_NS) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        set_mtime(path, time.time_ns() - age_ns)
        return path

    def scan(self, *, verify: bool = False) -> SourceScan:
        return scan(self.source, self.known, verify=verify)

    def read(self) -> SourceScan:
        """Scan, read what was found and remember it, as a refresh does."""
        found = self.scan()
        for doc_id, file in found.files.items():
            data, status, read_at_ns = read_bytes(file, self.root)
            size, mtime_ns, ctime_ns = status.st_size, status.st_mtime_ns, status.st_ctime_ns
            self.known[doc_id] = Remembered(size, mtime_ns, read_at_ns, content_hash(data), ctime_ns)
        return found

    def file(self, name: str, *, verify: bool = False) -> FoundFile:
        return self.scan(verify=verify).files[f"docs/{name}"]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    root = tmp_path / "docs"
    root.mkdir()
    return Folder(root)


def set_mtime(path: Path, mtime_ns: int) -> None:
    os.utime(path, ns=(mtime_ns, mtime_ns))


def let_the_clock_tick(folder: Path) -> None:
    """Go on until the file system stamps a change with another time than the last one."""
    probe = folder / ".probe"
    probe.touch()
    before = probe.stat().st_ctime_ns
    while probe.stat().st_ctime_ns == before:
        probe.touch()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def failing(place: str, error: OSError, real: Callable[..., Any]) -> Callable[..., Any]:
    """`real`, but raising `error` for paths that end in `place` (tests run as root, whom no mode keeps out)."""

    def call(path: Any, *arguments: Any, **options: Any) -> Any:
        if os.fspath(path).endswith(place):
            raise error
        return real(path, *arguments, **options)

    return call


# What moved ------------------------------------------------------------------------------------------------------


def test_a_new_file_is_found_with_its_place_size_and_mtime(folder: Folder) -> None:
    path = folder.write("a/b.md", b"text")
    file = folder.file("a/b.md")
    assert (file.doc_id, file.path, file.size) == ("docs/a/b.md", str(path), 4)
    assert (file.mtime_ns, file.max_bytes) == (path.stat().st_mtime_ns, 10_000_000)


def test_size_and_mtime_as_known_are_trusted_without_reading(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write("a.md", b"text")
    folder.read()
    monkeypatch.setattr(source_module, "_open", failing("", PermissionError(13, "must not be opened"), open))
    assert folder.file("a.md").content_hash is None


def test_a_new_mtime_with_the_same_size_is_hashed(folder: Folder) -> None:
    path = folder.write("a.md", b"text")
    folder.read()
    set_mtime(path, path.stat().st_mtime_ns + 1)
    assert folder.file("a.md").content_hash == sha256(b"text")


def test_a_same_size_edit_within_the_tick_of_the_last_read_is_noticed(folder: Folder) -> None:
    path = folder.write("a.md", b"old!", age_ns=0)
    mtime_ns = path.stat().st_mtime_ns
    folder.read()
    path.write_bytes(b"new!")
    set_mtime(path, mtime_ns)
    assert folder.file("a.md").content_hash == sha256(b"new!")


@pytest.mark.parametrize(("before_read_ns", "hashed"), [(RACY_NS + 1, False), (RACY_NS - 1, True), (-HOUR_NS, True)])
def test_an_mtime_about_as_young_as_the_last_read_is_not_trusted(
    folder: Folder, before_read_ns: int, hashed: bool
) -> None:
    path = folder.write("a.md", b"text")
    folder.read()
    folder.known["docs/a.md"].read_at_ns = path.stat().st_mtime_ns + before_read_ns
    assert (folder.file("a.md").content_hash is not None) == hashed


def test_an_edit_whose_old_mtime_was_restored_shows_by_its_size(folder: Folder) -> None:
    path = folder.write("a.md", b"text")
    mtime_ns = path.stat().st_mtime_ns
    folder.read()
    path.write_bytes(b"longer text")
    set_mtime(path, mtime_ns)
    assert folder.file("a.md").size == 11


def test_an_edit_whose_size_and_mtime_are_the_old_ones_shows_by_its_ctime(folder: Folder) -> None:
    path = folder.write("a.md", b"old!")
    mtime_ns = path.stat().st_mtime_ns
    folder.read()
    let_the_clock_tick(folder.root)
    path.write_bytes(b"new!")
    set_mtime(path, mtime_ns)
    assert folder.file("a.md").content_hash == sha256(b"new!")


def test_two_files_of_one_size_and_mtime_that_swap_their_names_are_noticed(folder: Folder) -> None:
    mtime_ns = time.time_ns() - HOUR_NS
    first, second = folder.write("a.md", b"one!"), folder.write("b.md", b"two!")
    set_mtime(first, mtime_ns)
    set_mtime(second, mtime_ns)
    folder.read()
    let_the_clock_tick(folder.root)
    first.rename(folder.root / "c.md")
    second.rename(first)
    (folder.root / "c.md").rename(second)
    assert folder.file("a.md").content_hash == sha256(b"two!")
    assert folder.file("b.md").content_hash == sha256(b"one!")


def test_a_row_that_knows_no_ctime_has_its_file_hashed(folder: Folder) -> None:
    folder.write("a.md", b"text")
    folder.read()
    folder.known["docs/a.md"].ctime_ns = None
    assert folder.file("a.md").content_hash == sha256(b"text")


def test_an_edit_that_hides_behind_size_and_all_times_shows_with_verify(folder: Folder) -> None:
    path = folder.write("a.md", b"old!")
    mtime_ns = path.stat().st_mtime_ns
    folder.read()
    path.write_bytes(b"new!")
    set_mtime(path, mtime_ns)
    folder.known["docs/a.md"].ctime_ns = path.stat().st_ctime_ns
    assert folder.file("a.md").content_hash is None
    assert folder.file("a.md", verify=True).content_hash == sha256(b"new!")


def test_an_older_file_put_in_the_place_of_a_newer_one_is_hashed(folder: Folder) -> None:
    path = folder.write("a.md", b"newer")
    folder.read()
    backup = folder.write("backup.md", b"older", age_ns=24 * HOUR_NS)
    backup.rename(path)
    assert folder.file("a.md").content_hash == sha256(b"older")


def test_a_file_that_cannot_be_hashed_is_equal_to_no_content(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder.write("a.md", b"text")
    folder.read()
    set_mtime(path, path.stat().st_mtime_ns + 1)
    monkeypatch.setattr(source_module.os, "open", failing("a.md", PermissionError(13, "Permission denied"), os.open))
    assert folder.file("a.md").content_hash == ""


def test_a_file_over_the_limit_is_found_but_never_hashed(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder.write("a.md", b"x" * 100)
    folder.read()
    folder.options["max_bytes"] = 99
    monkeypatch.setattr(source_module, "_open", failing("", PermissionError(13, "must not be opened"), open))
    set_mtime(path, path.stat().st_mtime_ns + 1)
    file = folder.file("a.md", verify=True)
    assert (file.size, file.max_bytes, file.content_hash) == (100, 99, None)


# What cannot be seen -----------------------------------------------------------------------------------------------


def deny_listing(monkeypatch: pytest.MonkeyPatch, place: str, error: OSError | None = None) -> None:
    error = error or PermissionError(13, "Permission denied")
    monkeypatch.setattr(source_module.os, "scandir", failing(place, error, os.scandir))


def test_an_unreadable_folder_hides_what_is_below_it_and_nothing_else(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("locked/a.md", "locked/deep/b.md", "lockedout.md", "locked.md", "open/c.md"):
        folder.write(name, b"text")
    deny_listing(monkeypatch, "/locked")
    found = folder.scan()
    assert set(found.files) == {"docs/lockedout.md", "docs/locked.md", "docs/open/c.md"}
    assert found.unreadable == {"docs/locked": "Permission denied"}
    assert not found.covers("docs/locked/a.md")
    assert not found.covers("docs/locked/deep/b.md")
    assert found.covers("docs/lockedout2.md")
    assert found.covers("docs/open/gone.md")


def test_an_unreadable_file_hides_itself_and_no_file_whose_name_begins_like_it(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write("a.md", b"text")

    class Unreadable:
        name, path = "a.md", str(folder.root / "a.md")

        def is_dir(self, *, follow_symlinks: bool) -> bool:
            return False

        def is_symlink(self) -> bool:
            return False

        def stat(self) -> os.stat_result:
            raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(source_module, "_list", lambda path: [Unreadable()])
    found = folder.scan()
    assert found.files == {}
    assert found.unreadable == {"docs/a.md": "Permission denied"}
    assert not found.covers("docs/a.md")
    assert found.covers("docs/a.mdx")


@pytest.mark.parametrize(
    "error", [PermissionError(13, "Permission denied"), OSError(107, "Transport endpoint is not connected")]
)
def test_a_root_that_cannot_be_listed_tells_nothing(
    folder: Folder, error: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write("a.md", b"text")
    deny_listing(monkeypatch, "docs", error)
    found = folder.scan()
    assert found.unreachable == f"{folder.root}: {error.strerror}"
    assert not found.covers("docs/a.md")


def test_a_missing_root_a_file_and_a_dangling_link_as_root_tell_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("missing", "file", "link", "loop"):
        found = Folder(tmp_path / name).scan()
        assert found.unreachable.startswith(f"{tmp_path / name}: ")
        assert not found.covers("docs/a.md")


def test_an_empty_root_is_seen_to_be_empty(folder: Folder) -> None:
    found = folder.scan()
    assert (found.files, found.unreachable) == ({}, "")
    assert found.covers("docs/a.md")


def test_a_root_that_is_a_link_to_a_folder_is_walked(folder: Folder, tmp_path: Path) -> None:
    folder.write("a.md", b"text")
    (tmp_path / "current").symlink_to(folder.root)
    linked = Folder(tmp_path / "current")
    found = linked.read()
    assert set(found.files) == {"docs/a.md"}
    assert found.files["docs/a.md"].path == str(tmp_path / "current" / "a.md")


def while_listing(monkeypatch: pytest.MonkeyPatch, place: Path, act: Callable[[], object]) -> None:
    """Call `act` when `place` was listed and its entries were not yet looked at."""
    real = source_module._list

    def listed(path: Path) -> Any:
        entries = real(path)
        if path == place:
            act()
        return entries

    monkeypatch.setattr(source_module, "_list", listed)


def test_a_file_deleted_in_mid_scan_is_gone(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write("b.md", b"text")
    path = folder.write("a.md", b"text")
    while_listing(monkeypatch, folder.root, path.unlink)
    found = folder.scan()
    assert set(found.files) == {"docs/b.md"}
    assert found.covers("docs/a.md")


def test_a_folder_that_vanishes_in_mid_scan_deletes_nothing_yet(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write("b.md", b"text")
    folder.write("sub/a.md", b"text")
    while_listing(monkeypatch, folder.root, lambda: shutil.rmtree(folder.root / "sub"))
    found = folder.scan()
    assert set(found.files) == {"docs/b.md"}
    assert not found.covers("docs/sub/a.md")
    monkeypatch.undo()
    assert folder.scan().covers("docs/sub/a.md")


@pytest.mark.parametrize("put_back", [True, False], ids=["an empty folder in its place", "nothing in its place"])
def test_a_root_that_goes_in_mid_scan_deletes_nothing(
    folder: Folder, put_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(5):
        folder.write(f"{n}.md", b"text")

    def unmount() -> None:
        folder.root.rename(folder.root.with_name("elsewhere"))
        if put_back:
            folder.root.mkdir()

    while_listing(monkeypatch, folder.root, unmount)
    found = folder.scan()
    assert "moved or unmounted" in found.unreachable
    assert not found.covers("docs/0.md")


# Links and special files -------------------------------------------------------------------------------------------


def test_links_are_followed_to_files_below_the_root_only(folder: Folder, tmp_path: Path) -> None:
    folder.write("real.md", b"text")
    folder.write("sub/other.txt", b"other")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.md").write_bytes(b"secret")
    links = {
        "alias.md": "real.md", "sub/up.md": "../real.md", "absolute.md": str(folder.root / "sub/other.txt"),
        "out.md": str(outside / "secret.md"), "relative-out.md": "../outside/secret.md", "dangling.md": "nothing.md",
        "self.md": "self.md", "through-a-file.md": "real.md/x", "folder.md": "sub", "folder": "sub", "loop": "..",
        "out": str(outside), "chain.md": "alias.md", "chain-out.md": "out.md", "beside.md": "../docs-private/x.md",
        "logo.png": "nothing.png",
    }  # fmt: skip
    (tmp_path / "docs-private").mkdir()
    (tmp_path / "docs-private" / "x.md").write_bytes(b"private")
    for name, target in links.items():
        (folder.root / name).symlink_to(target)
    found = folder.scan()
    assert set(found.files) == {
        f"docs/{name}" for name in ("real.md", "sub/other.txt", "alias.md", "sub/up.md", "absolute.md", "chain.md")
    }
    out, nowhere, to_folder = "a symbolic link out of the source", "a symbolic link that leads nowhere", "to a folder"
    expected = {
        "out.md": out, "relative-out.md": out, "chain-out.md": out, "beside.md": out, "dangling.md": nowhere,
        "self.md": nowhere, "through-a-file.md": nowhere, "folder.md": to_folder, "folder": to_folder,
        "loop": to_folder, "out": to_folder,
    }  # fmt: skip
    assert set(found.skipped) == {f"docs/{name}" for name in expected}
    for name, reason in expected.items():
        assert reason in found.skipped[f"docs/{name}"]


def test_a_link_is_as_large_and_as_new_as_its_target(folder: Folder) -> None:
    target = folder.write("real.md", b"text")
    (folder.root / "alias.md").symlink_to("real.md")
    folder.read()
    assert folder.file("alias.md").content_hash is None
    target.write_bytes(b"TEXT")
    assert folder.file("alias.md").content_hash == sha256(b"TEXT")


def test_a_link_into_an_unreadable_folder_is_not_taken_for_deleted(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write("locked/real.md", b"text")
    (folder.root / "alias.md").symlink_to("locked/real.md")
    denied = PermissionError(13, "Permission denied")
    monkeypatch.setattr(source_module.os.path, "realpath", failing("alias.md", denied, os.path.realpath))
    found = folder.scan()
    assert found.unreadable == {"docs/alias.md": "Permission denied"}
    assert not found.covers("docs/alias.md")


def test_an_excluded_link_to_a_folder_is_not_worth_a_word(folder: Folder) -> None:
    (folder.root / ".cache").symlink_to("/tmp")
    assert folder.scan().skipped == {}


def test_special_files_are_left_alone(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write("a.md", b"text")
    os.mkfifo(folder.root / "pipe.md")
    (folder.root / "device.md").symlink_to("/dev/null")
    monkeypatch.chdir(folder.root)  # the path of a socket is at most some hundred characters long
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket.md")
        found = folder.scan()
    assert set(found.files) == {"docs/a.md"}
    assert found.skipped == {
        "docs/pipe.md": "not a regular file",
        "docs/socket.md": "not a regular file",
        "docs/device.md": "a symbolic link out of the source",
    }


def test_a_pipe_put_in_the_place_of_a_document_does_not_hang_the_read(folder: Folder) -> None:
    path = folder.write("a.md", b"text")
    file = folder.file("a.md")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(TransientError, match=r"a\.md cannot be read: not a regular file"):
        read_bytes(file, folder.root)


def test_a_pipe_put_in_the_place_of_a_document_does_not_hang_the_scan(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder.write("a.md", b"text")
    folder.read()
    set_mtime(path, path.stat().st_mtime_ns + 1)
    real = source_module._open

    def swapped(name: str) -> Any:
        path.unlink()
        os.mkfifo(path)
        return real(name)

    monkeypatch.setattr(source_module, "_open", swapped)
    assert folder.file("a.md").content_hash == ""


# Names -------------------------------------------------------------------------------------------------------------

NAMES = [
    "with space.md", "comma, semicolon;.md", "percent%20%.md", "quote'double\".md", "new\nline.md", "end\n.md",
    "emoji 🦉.md", "dots...md", "...md", "..md.md", "[a...b].md", "back\\slash.md", "#hash?.md", "!bang.md",
    " lead.md", "trail .md", "ünï/ñandú.md", "nfd/n\u0303.md", "%2F.md", "tab\t.md", "a" * 252 + ".md", "$(x) `y`.md",
    "--help.md", "{c}.md", "*star*.md", "~.md", "new\nfolder/a.md", "\n/x.md", "\x01\x7f.md", "\u202e.md", "x.md/y.md",
    "<|endoftext|>.md", "C:.md", "con.md", "\u2028.md", "\r\n.md", ".md.md",
]  # fmt: skip


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith(".")])
def test_any_name_is_found_and_read(name: str, folder: Folder) -> None:
    folder.write(name, name.encode())
    found = folder.scan()
    assert list(found.files) == [f"docs/{name}"]
    assert not found.skipped
    assert not found.unreadable
    assert read_bytes(found.files[f"docs/{name}"], folder.root)[0] == name.encode()


def test_names_that_begin_with_a_dot_are_hidden_until_asked_for(folder: Folder) -> None:
    for name in (".a.md", "...md", ".git/b.md", "c/.d/e.md", "c/.f.md", "c/g.md"):
        folder.write(name, b"text")
    assert set(folder.scan().files) == {"docs/c/g.md"}
    folder.options["exclude"] = []
    assert len(folder.scan().files) == 6


def test_a_name_that_is_not_utf8_is_reported_not_lost(folder: Folder) -> None:
    folder.write("good.md", b"text")
    for name in (b"caf\xe9.md", b"caf\xe9/inside.md", b"picture\xe9.png"):
        folder.write(os.fsdecode(name), b"text")
    found = folder.scan()
    assert set(found.files) == {"docs/good.md"}
    assert found.skipped == dict.fromkeys(
        ["docs/caf\\udce9.md", "docs/caf\\udce9/inside.md"], "its name is not valid UTF-8; rename it"
    )


@pytest.fixture
def inside(folder: Folder) -> Iterator[Callable[[str], None]]:
    """Makes folders below one another by relative paths, for trees whose whole path no call accepts."""
    start = Path.cwd()
    os.chdir(folder.root)

    def enter(name: str) -> None:
        Path(name).mkdir()
        os.chdir(name)

    yield enter
    os.chdir(start)


def test_two_hundred_levels_are_found_and_read(folder: Folder) -> None:
    name = "d/" * 200 + "leaf.md"
    folder.write(name, b"text")
    assert read_bytes(folder.file(name), folder.root)[0] == b"text"


def test_what_lies_beyond_the_longest_path_is_reported_not_lost(folder: Folder, inside: Callable[[str], None]) -> None:
    level = "d" * 100
    for _ in range(60):
        Path("leaf.md").write_bytes(b"text")
        inside(level)
    found = folder.scan()
    depths = {doc_id.count(level) for doc_id in found.files}
    assert len(depths) > 30
    [(place, reason)] = found.unreadable.items()
    assert place.count(level) == max(depths) + 1
    assert reason == "File name too long"
    assert not found.covers(f"{place}/leaf.md")
    assert found.covers("docs/gone.md")


def test_a_file_whose_path_is_just_too_long_is_reported_not_lost(folder: Folder, inside: Callable[[str], None]) -> None:
    length = len(str(folder.root))
    while length + 201 + 1 < 4_000:
        inside("d" * 200)
        length += 201
    Path("ok.md").write_bytes(b"text")
    Path("x" * 240 + ".md").write_bytes(b"text")
    found = folder.scan()
    assert [doc_id.rpartition("/")[2] for doc_id in found.files] == ["ok.md"]
    assert [(p.rpartition("/")[2], why) for p, why in found.unreadable.items()] == [
        ("x" * 240 + ".md", "File name too long")
    ]


# Include and exclude -----------------------------------------------------------------------------------------------

TREE = [
    "a.md", "b.txt", "c.MD", "drafts/d.md", "guides/drafts/e.md", "guides/f.md", "new\nline/g.md", "h\n.md", "i.png",
]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"a.md", "b.txt", "c.MD", "drafts/d.md", "guides/drafts/e.md", "guides/f.md", "new\nline/g.md", "h\n.md"}),
        ({"include": ["*.txt"]}, {"b.txt"}),
        ({"include": ["/*.md"]}, {"a.md", "c.MD", "h\n.md"}),
        ({"include": ["guides/"]}, {"guides/drafts/e.md", "guides/f.md"}),
        ({"include": ["new*/"]}, {"new\nline/g.md"}),
        ({"include": ["*.md", "!guides/**"]}, {"a.md", "c.MD", "drafts/d.md", "new\nline/g.md", "h\n.md"}),
        ({"include": []}, set()),
        (
            {"include": ["*.[mM][dD]"], "exclude": ["drafts/"]},
            {"a.md", "c.MD", "guides/f.md", "new\nline/g.md", "h\n.md"},
        ),
        (
            {"exclude": ["/drafts", "*.txt"]},
            {"a.md", "c.MD", "guides/drafts/e.md", "guides/f.md", "new\nline/g.md", "h\n.md"},
        ),
        # what git does with a folder that is let in again, and GitIgnoreSpec by itself does not
        ({"exclude": ["*", "!guides", "!guides/f.md"]}, {"guides/f.md"}),
        ({"exclude": ["*", "!*/", "!f.md"]}, {"guides/f.md"}),
        ({"exclude": ["drafts/", "!/guides/"]}, {"a.md", "c.MD", "b.txt", "guides/f.md", "new\nline/g.md", "h\n.md"}),
        (
            {"exclude": ["drafts/", "!drafts/d.md"]},
            {"a.md", "c.MD", "b.txt", "guides/f.md", "new\nline/g.md", "h\n.md"},
        ),
        ({"exclude": ["*/", "!/guides"]}, {"a.md", "c.MD", "b.txt", "guides/f.md", "h\n.md"}),
        ({"exclude": ["guides", "!guides/**", "new*"]}, {"a.md", "c.MD", "b.txt", "drafts/d.md", "h\n.md"}),
        (
            {"exclude": ["new?line"]},
            {"a.md", "c.MD", "b.txt", "drafts/d.md", "guides/drafts/e.md", "guides/f.md", "h\n.md"},
        ),
    ],
)
def test_patterns_work_as_in_gitignore(options: dict[str, Any], expected: set[str], folder: Folder) -> None:
    for name in TREE:
        folder.write(name, b"text")
    folder.options = options
    assert set(folder.scan().files) == {f"docs/{name}" for name in expected}


def test_an_excluded_folder_is_not_even_listed(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write(".git/objects/a.md", b"text")
    deny_listing(monkeypatch, ".git")
    assert folder.scan().unreadable == {}


# Reading -----------------------------------------------------------------------------------------------------------


def test_the_bytes_come_with_the_status_of_the_same_file(folder: Folder) -> None:
    path = folder.write("a.md", b"old")
    file = folder.file("a.md")
    path.write_bytes(b"newer text")
    before = time.time_ns()
    data, status, read_at_ns = read_bytes(file, folder.root)
    assert data == b"newer text"
    assert (status.st_size, status.st_mtime_ns) == (10, path.stat().st_mtime_ns)
    assert before <= read_at_ns <= time.time_ns()


@pytest.mark.parametrize(("size", "fits"), [(99, True), (100, True), (101, False), (5_000, False)])
def test_a_file_over_the_limit_fails_for_good_and_says_what_to_do(folder: Folder, size: int, fits: bool) -> None:
    folder.options["max_bytes"] = 100
    folder.write("a.md", b"x" * size)
    file = folder.file("a.md")
    if fits:
        assert len(read_bytes(file, folder.root)[0]) == size
        return
    with pytest.raises(PermanentError, match=rf"has {size:,} bytes, more than the 100 .*raise max_bytes"):
        read_bytes(file, folder.root)


def test_a_file_that_grew_beyond_the_limit_since_the_scan_is_not_read_whole(folder: Folder) -> None:
    folder.options["max_bytes"] = 100
    path = folder.write("a.md", b"x" * 50)
    file = folder.file("a.md")
    with path.open("ab") as handle:
        handle.truncate(10**12)
    with pytest.raises(PermanentError, match=r"1,000,000,000,000 bytes"):
        read_bytes(file, folder.root)


def test_a_file_that_grew_within_the_limit_is_read_and_seen_to_have_moved(folder: Folder) -> None:
    path = folder.write("a.md", b"one")
    file = folder.file("a.md")
    with path.open("ab") as handle:
        handle.write(b" two")
    data, status, _ = read_bytes(file, folder.root)
    assert (data, status.st_size) == (b"one two", 7)


@pytest.mark.parametrize("replacement", ["nothing", "a folder", "a link to a file outside", "a folder outside"])
def test_what_took_a_file_s_place_since_the_scan_is_not_read(folder: Folder, replacement: str, tmp_path: Path) -> None:
    path = folder.write("sub/a.md", b"text")
    file = folder.file("sub/a.md")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.md").write_bytes(b"secret")
    path.unlink()
    match replacement:
        case "a folder":
            path.mkdir()
        case "a link to a file outside":
            path.symlink_to(outside / "a.md")
        case "a folder outside":
            path.parent.rmdir()
            path.parent.symlink_to(outside)
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(TransientError, match=r"a\.md (cannot be read|leads out of its source)"):
        read_bytes(file, folder.root)
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


def test_an_unreadable_file_may_be_readable_later(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write("a.md", b"text")
    file = folder.file("a.md")
    monkeypatch.setattr(source_module.os, "open", failing("a.md", PermissionError(13, "Permission denied"), os.open))
    with pytest.raises(TransientError, match=r"a\.md cannot be read: Permission denied"):
        read_bytes(file, folder.root)


# Any sequence of edits -----------------------------------------------------------------------------------------------

NAME = st.sampled_from(["a.md", "b.md", "sub/a.md", "sub/new\nline.md"])
CONTENT = st.sampled_from([b"", b"one", b"two", b"three"])
EDIT = st.one_of(
    st.tuples(st.just("write"), NAME, CONTENT),
    st.tuples(st.just("write and restore the mtime"), NAME, CONTENT),
    st.tuples(st.just("delete"), NAME, st.none()),
    st.tuples(st.just("touch"), NAME, st.none()),
    st.tuples(st.just("rename"), NAME, NAME),
    st.tuples(st.just("read"), st.none(), st.none()),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(EDIT, max_size=12))
def test_a_scan_after_any_edits_finds_what_is_there_and_trusts_nothing_that_differs(edits: list[Any]) -> None:
    """Young files throughout, so that even a same-size edit with its old mtime restored must be noticed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Folder(Path(name))
        for action, where, what in [*edits, ("read", None, None)]:
            path = folder.root / (where or "")
            match action:
                case "write":
                    folder.write(where, what, age_ns=0)
                case "write and restore the mtime" if path.exists():
                    mtime_ns = path.stat().st_mtime_ns
                    path.write_bytes(what)
                    set_mtime(path, mtime_ns)
                case "delete":
                    path.unlink(missing_ok=True)
                case "touch" if path.exists():
                    path.touch()
                case "rename" if path.exists():
                    (folder.root / what).parent.mkdir(exist_ok=True)
                    path.rename(folder.root / what)
                case "read":
                    check_scan(folder)
                    folder.known.clear()
                    folder.read()


def check_scan(folder: Folder) -> None:
    found = folder.scan()
    there = {f"docs/{p.relative_to(folder.root)}": p.read_bytes() for p in folder.root.rglob("*") if p.is_file()}
    assert set(found.files) == set(there)
    for doc_id, file in found.files.items():
        known = folder.known.get(doc_id)
        believed = known is not None and known.size == file.size and file.content_hash in (None, known.content_hash)
        assert believed == (known is not None and known.content_hash == sha256(there[doc_id]))
