"""Folders and files for their owner alone: an index and Dagster's history hold the text of documents.

Folders that are made here have mode 0700, which keeps others from everything below, whoever writes it. Folders that
were there before are left as their owner made them.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

FOLDER_MODE, FILE_MODE = 0o700, 0o600
_OTHERS = 0o007


def make_folder(path: Path) -> None:
    """Make a folder and those above it that are missing, each for its owner alone. Raises OSError."""
    missing = []
    for folder in (path, *path.parents):
        if folder.exists():
            break
        missing.append(folder)
    for folder in reversed(missing):
        folder.mkdir(FOLDER_MODE, exist_ok=True)
    if not missing:
        path.mkdir(exist_ok=True)  # raises for what is no folder


def write(path: Path, content: bytes) -> None:
    """Write a file; a new one is for its owner alone. Raises OSError."""
    with open(path, "wb", opener=_private) as file:
        file.write(content)


def is_open_to_others(folder: Path) -> bool:
    """Whether this user's folder can be entered or listed by any other user; the group is its owner's choice."""
    try:
        status = folder.stat()
    except OSError:
        return False
    is_own = hasattr(os, "geteuid") and status.st_uid == os.geteuid()
    return is_own and bool(stat.S_IMODE(status.st_mode) & _OTHERS)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, FILE_MODE)
