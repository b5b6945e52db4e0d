"""The folders of LanceDB tables as they lie on disk: manifests, data, and what is put aside for a person to look at."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

VERSIONS, DATA = "_versions", "data"
ASIDE = "damaged"
"""Folder of the storage for tables that are used no more; nothing here is ever opened or removed by this program."""
_LARGEST = 2**64 - 1


def manifests(folder: Path) -> dict[int, Path]:
    """The manifest of each version of a table. Raises OSError when the folder is there and cannot be read."""
    found = {}
    try:
        paths = list((folder / VERSIONS).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    for path in paths:
        if path.suffix == ".manifest" and path.stem.isdecimal():
            number = int(path.stem)
            # Newer tables count downwards, so that the newest name comes first in a listing.
            found[_LARGEST - number if number > _LARGEST // 2 else number] = path
    return found


def newest_manifest(folder: Path) -> Path | None:
    """The manifest that readers use; None when there is none. Raises OSError when that cannot be told."""
    found = manifests(folder)
    return found[max(found)] if found else None


def holds_data(folder: Path) -> bool:
    """Whether any data file lies in a table's folder; unknown counts as yes."""
    try:
        return any((folder / DATA).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def remove_leftover(folder: Path) -> None:
    """Remove what a kill left of a table without data, which is being made or dropped."""
    shutil.rmtree(folder, ignore_errors=True)


def move_aside(folder: Path) -> Path:
    """Move a table's folder out of the way, whole; where it is now."""
    place = _place(folder)
    folder.rename(place)
    return place


def keep_image(folder: Path) -> Path:
    """Keep a table's files as they are now, beside the index; where they are.

    LanceDB never writes into a file that is there, so links do, and take no room until the table drops the files.
    """
    place = _place(folder)
    shutil.copytree(folder, place, copy_function=_link)
    return place


def files(folder: Path) -> Iterator[Path]:
    """All files below a folder. Raises OSError when a folder cannot be listed."""

    def stop(error: OSError) -> None:
        raise error

    for parent, _, names in os.walk(folder, onerror=stop):
        yield from (Path(parent) / name for name in sorted(names))


def _place(folder: Path) -> Path:
    """A name that is not taken; not one that a listing of tables would show."""
    aside = folder.parent / ASIDE
    aside.mkdir(mode=0o700, exist_ok=True)
    stamp = time.strftime("%Y%m%dT%H%M%S")
    number = 0
    while True:
        place = aside / f"{folder.stem}-{stamp}{f'-{number}' if number else ''}.lance"
        if not place.exists():
            return place
        number += 1


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
