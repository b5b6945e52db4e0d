"""Finding documents: walk a source, trust size and mtime, hash only what moved."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from ctx_pipeline.documents.files import link_problem
from ctx_pipeline.documents.files import open_regular as _open
from ctx_pipeline.documents.ignored import GITIGNORE, MARKERS, GitIgnore, Selection, read_gitignore, why_left_out
from ctx_pipeline.documents.not_indexed import NotIndexed
from ctx_pipeline.settings import SourceSettings

RACY_NS = 2_000_000_000
"""A file written within this time before it was read may be written again without a visible change of mtime: FAT
keeps two seconds, kernels stamp by a tick of up to 10 ms. Such files are hashed again."""

_TELLING = MARKERS | {GITIGNORE}


class Known(Protocol):
    """What the ledger remembers of a file."""

    @property
    def size(self) -> int: ...
    @property
    def mtime_ns(self) -> int: ...
    @property
    def ctime_ns(self) -> int | None: ...
    @property
    def read_at_ns(self) -> int: ...


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A document's file as a scan found it."""

    doc_id: str
    path: str
    size: int
    mtime_ns: int
    max_bytes: int
    scanned_at_ns: int
    content_hash: str | None = None
    """Present when the scan had to hash the file; None means that size, mtime and ctime tell enough."""
    ctime_ns: int | None = None
    """When the file's bytes, mtime, name or mode were last changed, by the clock of its file system."""


@dataclass(slots=True)
class SourceScan:
    """One walk over one source."""

    name: str
    files: dict[str, FoundFile] = field(default_factory=dict)
    unreachable: str = ""
    """Why the root could not be listed; then nothing is known about its documents."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Folders that could not be listed and files that could not be looked at, named as doc_ids, with the reason."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Entries that match but are never followed or named, and links to folders, with the reason."""
    not_indexed: NotIndexed = field(default_factory=NotIndexed)
    """Regular files that no include pattern names; none of those that `exclude` or a .gitignore leaves out."""
    ignored: dict[str, str] = field(default_factory=dict)
    """Folders, and files that match, which a .gitignore or their kind leaves out, named as doc_ids, with the reason."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Of the documents known before, those that are there and were not found for that reason alone."""
    mounts: frozenset[str] = frozenset()
    """Folders that are mount points, as doc_ids; those known before that could not be looked at now are among them."""
    unmounted: frozenset[str] = frozenset()
    """Of the mount points known before, those that are ordinary folders now, or gone."""

    def covers(self, doc_id: str) -> bool:
        """Whether the absence of `doc_id` from `files` means that the document is gone."""
        return not self.unreachable and not any(f"{doc_id}/".startswith(f"{place}/") for place in self.unreadable)


def scan(
    source: SourceSettings,
    known: Mapping[str, Known],
    *,
    verify: bool = False,
    mounts: Iterable[str] = (),
    orphans: Collection[str] = (),
) -> SourceScan:
    """Walk `source`; files that moved since `known` (or all, with `verify`) are hashed.

    Symbolic links to files are followed while they stay below the root; links to folders never are (they loop, and
    make a document twice). Other special files are left alone. `mounts` are the mount points of an earlier scan;
    `orphans` are documents that are stored although nothing is known of them. Problems are in the result, never
    exceptions.
    """
    return _Walk(source, known, verify).run(mounts, orphans)


@dataclass(frozen=True, slots=True)
class _Folder:
    """A folder to be listed."""

    path: str
    """Below the root: empty for the root, ending in a slash else."""
    parent_device: int
    gitignore: GitIgnore
    asked_for: bool
    """Whether a pattern of `exclude` with `!` names it: then it is never left out for what it holds."""


class _Walk:
    """One scan in progress."""

    def __init__(self, source: SourceSettings, known: Mapping[str, Known], verify: bool) -> None:
        self._source, self._known, self._verify = source, known, verify
        self._wanted = Selection(source)
        self._root, self._real_root = source.path, os.path.realpath(source.path)
        self._found = SourceScan(source.name)
        self._pending: list[_Folder] = []
        self._mounts: set[str] = set()

    def run(self, mounts: Iterable[str], orphans: Collection[str]) -> SourceScan:
        """Walk all folders, without recursion: they may be nested deeper than Python's stack."""
        try:
            root = _identity(self._root)
            self._folder(_Folder("", root[0], GitIgnore(), asked_for=True))  # the root is never left out
        except OSError as error:
            return self._unreachable(error.strerror or str(error))
        while self._pending:
            folder = self._pending.pop()
            try:
                self._folder(folder)
            except OSError as error:
                self._unreadable(folder.path.rstrip("/"), error)
        # What vanished during the walk was deleted, unless the root itself went: unmounted, or put elsewhere.
        try:
            same = _identity(self._root) == root
        except OSError:
            same = False
        if not same:
            return self._unreachable("it was moved or unmounted while it was listed")
        self._compare_with_before(mounts, orphans)
        return self._found

    def _folder(self, folder: _Folder) -> None:
        entries = sorted(_list(self._root / folder.path), key=lambda entry: entry.name)
        telling = _TELLING.intersection(entry.name for entry in entries)
        if telling & MARKERS and not folder.asked_for:
            self._ignore(folder.path.rstrip("/"), f"it holds {min(telling & MARKERS)}")
            return
        # Asked for after the listing: what a volume held is not taken for gone when it is unmounted in between.
        device = _device(self._root / folder.path) if folder.path else folder.parent_device
        if device != folder.parent_device:
            self._mounts.add(self._doc_id(folder.path.rstrip("/")))
        gitignore = folder.gitignore
        if GITIGNORE in telling and self._source.gitignore:
            entry = next(entry for entry in entries if entry.name == GITIGNORE)
            if entry.is_file(follow_symlinks=False):  # git follows no link to a .gitignore either
                gitignore = gitignore.with_file(folder.path, read_gitignore(entry.path, _open))
        for entry in entries:
            relative = folder.path + entry.name
            try:
                if entry.is_dir(follow_symlinks=False):
                    self._subfolder(relative, entry.name, gitignore, device)
                else:
                    self._file(relative, entry, gitignore)
            except FileNotFoundError:
                continue  # deleted since the folder was listed
            except OSError as error:
                self._unreadable(relative, error)

    def _subfolder(self, relative: str, name: str, gitignore: GitIgnore, device: int) -> None:
        verdict = self._wanted.exclude.verdict(relative, folder=True)
        if verdict:
            return
        asked_for = verdict is False
        reason = "" if asked_for else why_left_out(name, relative, gitignore, folder=True)
        if reason:
            self._ignore(relative, reason)
        else:
            self._pending.append(_Folder(f"{relative}/", device, gitignore, asked_for))

    def _file(self, relative: str, entry: os.DirEntry[str], gitignore: GitIgnore) -> None:
        verdict = self._wanted.exclude.verdict(relative, folder=False)
        if verdict:
            return
        is_link = entry.is_symlink()
        to_folder = is_link and os.path.isdir(entry.path)  # noqa: PTH112 - also False for what cannot be told
        wanted = to_folder or self._wanted.include.verdict(relative)
        if wanted is False or (wanted is None and not entry.is_file(follow_symlinks=False)):
            return
        reason = "" if verdict is False else why_left_out(entry.name, relative, gitignore, folder=to_folder)
        if wanted is None:
            if not reason:
                self._found.not_indexed.add(self._doc_id(relative))
            return
        if reason:
            self._ignore(relative, reason)
            return
        problem = "a symbolic link to a folder" if to_folder else ""
        if is_link and not to_folder:
            problem = link_problem(entry.path, self._real_root)
        if not problem:
            status = entry.stat()
            if not stat.S_ISREG(status.st_mode):
                problem = "not a regular file"
            elif not _is_text(relative):
                problem = "its name is not valid UTF-8; rename it"
        doc_id = self._doc_id(relative)
        if problem:
            self._found.skipped[doc_id] = problem
            return
        max_bytes, now = self._source.max_bytes, time.time_ns()
        size, mtime_ns, ctime_ns = status.st_size, status.st_mtime_ns, status.st_ctime_ns
        file = FoundFile(doc_id, entry.path, size, mtime_ns, max_bytes, now, ctime_ns=ctime_ns)
        known = self._known.get(doc_id)
        self._found.files[doc_id] = _hashed(file) if known and _may_hide_an_edit(file, known, self._verify) else file

    def _compare_with_before(self, mounts: Iterable[str], orphans: Collection[str]) -> None:
        """Tell what is gone from what is left out, and from what is no longer mounted."""
        found = self._found
        if found.ignored:
            for doc_id in (*self._known, *orphans):
                reason = "" if doc_id in found.files else self._why_ignored(doc_id)
                if reason:
                    found.left_out[doc_id] = reason
        before = {place for place in mounts if not self._wanted.is_excluded(place.partition("/")[2], folder=True)}
        unseen = {place for place in before - self._mounts if not found.covers(place)}
        found.mounts = frozenset(self._mounts | unseen)
        found.unmounted = frozenset(before - found.mounts)

    def _why_ignored(self, doc_id: str) -> str:
        """Why a document that is there, and that the settings want, was not found; empty when that is not so."""
        place = doc_id
        while place and place not in self._found.ignored:
            place = place.rpartition("/")[0]
        source, _, relative = doc_id.partition("/")
        if not place or source != self._source.name or not self._wanted.include.matches(relative):
            return ""
        there = not self._wanted.is_excluded(relative, folder=False) and os.path.lexists(self._root / relative)
        return self._found.ignored[place] if there else ""

    def _ignore(self, relative: str, reason: str) -> None:
        self._found.ignored[self._doc_id(relative)] = reason

    def _doc_id(self, relative: str) -> str:
        return f"{self._source.name}/{_printable(relative)}"

    def _unreadable(self, relative: str, error: OSError) -> None:
        self._found.unreadable[self._doc_id(relative)] = error.strerror or str(error)

    def _unreachable(self, reason: str) -> SourceScan:
        self._found.unreachable = f"{self._root}: {reason}"
        return self._found


def is_racy(known: Known) -> bool:
    """Whether an edit just after the last reading could have left size and times as they were."""
    return known.mtime_ns > known.read_at_ns - RACY_NS


def _list(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return list(entries)


def _device(folder: Path) -> int:
    """The device of a folder; unlike its parent's, the folder is a mount point."""
    return folder.stat().st_dev


def _identity(root: Path) -> tuple[int, int]:
    status = root.stat()
    return status.st_dev, status.st_ino


def _may_hide_an_edit(file: FoundFile, known: Known, verify: bool) -> bool:
    """Whether only the bytes can tell if the file differs from what is known of it."""
    if file.size != known.size or file.size > file.max_bytes:
        return False  # reading it once, when it is parsed, is enough
    # Names swapped by renaming, and an mtime put back after an edit, show in the ctime alone. (No inode: it changes
    # with every mount and checkout.)
    moved = file.mtime_ns != known.mtime_ns or file.ctime_ns != known.ctime_ns
    return verify or moved or is_racy(known)


def _hashed(file: FoundFile) -> FoundFile:
    try:
        with _open(file.path) as handle:
            return replace(file, content_hash=hashlib.file_digest(handle, "sha256").hexdigest())
    except OSError:
        return replace(file, content_hash="")  # equal to no content, so owed: the read that follows tells why it fails


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _printable(name: str) -> str:
    return name.encode(errors="backslashreplace").decode()
