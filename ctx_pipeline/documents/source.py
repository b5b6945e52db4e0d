"""Finding documents: walk a source, trust size and mtime, hash only what moved."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from io import BufferedReader
from pathlib import Path
from typing import Protocol

from ctx_pipeline.documents.patterns import Exclude, Include
from ctx_pipeline.errors import PermanentError, TransientError
from ctx_pipeline.settings import SourceSettings

RACY_NS = 2_000_000_000
"""A file written within this time before it was read may be written again without a visible change of mtime: FAT
keeps two seconds, kernels stamp by a tick of up to 10 ms. Such files are hashed again."""

_LEADS_NOWHERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


class Known(Protocol):
    """What the ledger remembers of a file."""

    @property
    def size(self) -> int: ...
    @property
    def mtime_ns(self) -> int: ...
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
    """Present when the scan had to hash the file; None means that size and mtime tell enough."""


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

    def covers(self, doc_id: str) -> bool:
        """Whether the absence of `doc_id` from `files` means that the document is gone."""
        return not self.unreachable and not any(f"{doc_id}/".startswith(f"{place}/") for place in self.unreadable)


def scan(source: SourceSettings, known: Mapping[str, Known], *, verify: bool = False) -> SourceScan:
    """Walk `source`; files that moved since `known` (or all, with `verify`) are hashed.

    Symbolic links to files are followed while they stay below the root; links to folders never are (they loop, and
    make a document twice). Other special files are left alone. Problems are in the result, never exceptions.
    """
    return _Walk(source, known, verify).run()


class _Walk:
    """One scan in progress."""

    def __init__(self, source: SourceSettings, known: Mapping[str, Known], verify: bool) -> None:
        self._source, self._known, self._verify = source, known, verify
        self._include, self._exclude = Include(source.include), Exclude(source.exclude)
        self._root, self._real_root = source.path, os.path.realpath(source.path)
        self._found = SourceScan(source.name)
        self._pending = [""]

    def run(self) -> SourceScan:
        """Walk all folders, without recursion: they may be nested deeper than Python's stack."""
        try:
            root = _identity(self._root)
            self._folder(self._pending.pop())
        except OSError as error:
            return self._unreachable(error.strerror or str(error))
        while self._pending:
            folder = self._pending.pop()
            try:
                self._folder(folder)
            except OSError as error:
                self._unreadable(folder.rstrip("/"), error)
        # What vanished during the walk was deleted, unless the root itself went: unmounted, or put elsewhere.
        try:
            same = _identity(self._root) == root
        except OSError:
            same = False
        return self._found if same else self._unreachable("it was moved or unmounted while it was listed")

    def _folder(self, folder: str) -> None:
        for entry in sorted(_list(self._root / folder), key=lambda entry: entry.name):
            relative = folder + entry.name
            try:
                if not entry.is_dir(follow_symlinks=False):
                    self._file(relative, entry)
                elif not self._exclude.matches_folder(relative):
                    self._pending.append(f"{relative}/")
            except FileNotFoundError:
                continue  # deleted since the folder was listed
            except OSError as error:
                self._unreadable(relative, error)

    def _file(self, relative: str, entry: os.DirEntry[str]) -> None:
        to_folder = entry.is_symlink() and os.path.isdir(entry.path)  # noqa: PTH112 - also False for what cannot be told
        if not (to_folder or self._include.matches(relative)) or self._exclude.matches_file(relative):
            return
        problem = "a symbolic link to a folder" if to_folder else ""
        if entry.is_symlink() and not to_folder:
            problem = _link_problem(entry.path, self._real_root)
        if not problem:
            status = entry.stat()
            if not stat.S_ISREG(status.st_mode):
                problem = "not a regular file"
            elif not _is_text(relative):
                problem = "its name is not valid UTF-8; rename it"
        doc_id = f"{self._source.name}/{_printable(relative)}"
        if problem:
            self._found.skipped[doc_id] = problem
            return
        max_bytes, now = self._source.max_bytes, time.time_ns()
        file = FoundFile(doc_id, entry.path, status.st_size, status.st_mtime_ns, max_bytes, now)
        known = self._known.get(doc_id)
        self._found.files[doc_id] = _hashed(file) if known and _may_hide_an_edit(file, known, self._verify) else file

    def _unreadable(self, relative: str, error: OSError) -> None:
        self._found.unreadable[f"{self._source.name}/{_printable(relative)}"] = error.strerror or str(error)

    def _unreachable(self, reason: str) -> SourceScan:
        self._found.unreachable = f"{self._root}: {reason}"
        return self._found


def read_bytes(file: FoundFile, root: Path) -> tuple[bytes, os.stat_result, int]:
    """The file's bytes, its status from the same open file, and when reading began (ns).

    Raises PermanentError when the file exceeds its source's `max_bytes`, TransientError when it cannot be read now:
    also when something else took its place since the scan, which the next scan will tell.
    """
    started = time.time_ns()
    try:
        if not _inside(os.path.realpath(file.path), os.path.realpath(root)):
            raise TransientError(f"{file.path} leads out of its source {root}; move the file below it")
        with _open(file.path) as handle:
            status = os.fstat(handle.fileno())
            data = handle.read(file.max_bytes + 1)
    except OSError as error:
        raise TransientError(f"{file.path} cannot be read: {error.strerror or error}") from error
    if len(data) > file.max_bytes:
        raise PermanentError(
            f"{file.path} has {status.st_size:,} bytes, more than the {file.max_bytes:,} of its source's max_bytes; "
            "raise max_bytes, split the file or exclude it"
        )
    return data, status, started


def content_hash(data: bytes) -> str:
    """sha256 of a file's bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def _list(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return list(entries)


def _open(path: str) -> BufferedReader:
    """Open a regular file. Not blocking: a pipe put in the file's place must not hang the refresh."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return open(descriptor, "rb")


def _identity(root: Path) -> tuple[int, int]:
    status = root.stat()
    return status.st_dev, status.st_ino


def _may_hide_an_edit(file: FoundFile, known: Known, verify: bool) -> bool:
    """Whether only the bytes can tell if the file differs from what is known of it."""
    if file.size != known.size or file.size > file.max_bytes:
        return False  # reading it once, when it is parsed, is enough
    racy = file.mtime_ns > known.read_at_ns - RACY_NS
    return verify or racy or file.mtime_ns != known.mtime_ns


def _hashed(file: FoundFile) -> FoundFile:
    try:
        with _open(file.path) as handle:
            return replace(file, content_hash=hashlib.file_digest(handle, "sha256").hexdigest())
    except OSError:
        return replace(file, content_hash="")  # equal to no content, so owed: the read that follows tells why it fails


def _link_problem(path: str, real_root: str) -> str:
    """Why a link is not followed, if so. Raises OSError when that cannot be told now."""
    try:
        target = os.path.realpath(path, strict=True)
    except OSError as error:
        if error.errno in _LEADS_NOWHERE:
            return f"a symbolic link that leads nowhere ({error.strerror})"
        raise
    return "" if _inside(target, real_root) else "a symbolic link out of the source"


def _inside(path: str, root: str) -> bool:
    return path.startswith(root.rstrip(os.sep) + os.sep)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _printable(name: str) -> str:
    return name.encode(errors="backslashreplace").decode()
