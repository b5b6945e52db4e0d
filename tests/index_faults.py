"""Ways to break an index on disk, as disks, kills, backups and people do."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import lancedb


def missing(path: Path) -> None:
    path.unlink()


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def zeroed_inside(path: Path) -> None:
    """Zeroes where data are; the end of the file, by which its kind is known, stays."""
    content = bytearray(path.read_bytes())
    begin, end = len(content) // 8, len(content) // 2
    content[begin:end] = bytes(end - begin)
    path.write_bytes(content)


FILE_FAULTS: tuple[Callable[[Path], None], ...] = (missing, zeroed, truncated, emptied, zeroed_inside)


def table(index: Path, name: str) -> Path:
    """A table's folder."""
    return index / f"{name}.lance"


def data_files(index: Path, name: str) -> list[Path]:
    """The data files of a table, largest first."""
    return sorted((table(index, name) / "data").iterdir(), key=lambda path: -path.stat().st_size)


def newest_manifest(index: Path, name: str) -> Path:
    """The manifest that readers use: names count downwards."""
    return min((table(index, name) / "_versions").glob("*.manifest"))


def index_files(index: Path, name: str) -> list[Path]:
    """The files of a table's indexes."""
    return sorted((table(index, name) / "_indices").rglob("*.lance"))


def is_live(index: Path, name: str, path: Path) -> bool:
    """Whether an index file belongs to an index that readers use; older ones stay as long as old versions."""
    indices = lancedb.connect(str(index)).open_table(name).list_indices()
    return path.parent.name in {str(found.index_uuid) for found in indices}


def without_manifests(index: Path, name: str) -> None:
    """A table whose data are all there, and nothing that names them."""
    shutil.rmtree(table(index, name) / "_versions")


def any_data_file(index: Path, name: str, random: Random) -> None:
    """One data file, broken in some way."""
    random.choice(FILE_FAULTS)(random.choice(data_files(index, name)))


def any_manifest(index: Path, name: str, random: Random) -> None:
    """The newest manifest, unreadable; or all gone."""
    if random.random() < 0.3:
        without_manifests(index, name)
    else:
        random.choice((zeroed, truncated, emptied))(newest_manifest(index, name))


def any_index_file(index: Path, name: str, random: Random) -> None:
    """One file of the indexes, broken in some way; or all gone."""
    if random.random() < 0.2:
        shutil.rmtree(table(index, name) / "_indices")
    else:
        path = random.choice([path for path in index_files(index, name) if is_live(index, name, path)])
        # A vocabulary that lost some words of few rows still answers: that goes unnoticed.
        random.choice(FILE_FAULTS[:4] if path.stem.endswith("tokens") else FILE_FAULTS)(path)


def content(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
