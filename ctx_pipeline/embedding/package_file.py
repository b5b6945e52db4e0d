"""Data files of installed packages: found without importing the package, and checked byte for byte."""

from __future__ import annotations

import hashlib
import importlib.util
import mmap
from dataclasses import dataclass
from pathlib import Path

from ctx_pipeline.errors import FatalError


@dataclass(frozen=True)
class PackageFile:
    """A file below the folder of an importable package, as one release of the package has it."""

    package: str
    """Import name."""
    name: str
    """Path below the package's folder."""
    size: int
    """Bytes."""
    sha256: str
    release: str
    """The package at that release, as pip takes it."""
    provider: str
    """What to tell pip to get the package."""

    @property
    def remedy(self) -> str:
        """What to do about a missing or damaged file."""
        return f"reinstall it: pip install --force-reinstall --no-deps {self.release}"

    def locate(self) -> Path:
        """Where the file is. Raises FatalError when the package or the file is missing."""
        spec = importlib.util.find_spec(self.package)
        if spec is None or not spec.submodule_search_locations:
            raise FatalError(
                f"the embedding model is missing: the package {self.package} is not installed; "
                f"install it: pip install {self.provider}"
            )
        path = Path(spec.submodule_search_locations[0]) / self.name
        if not path.is_file():
            raise FatalError(f"the embedding model is missing: {path} does not exist; {self.remedy}")
        return path

    def verify(self, path: Path) -> None:
        """Raises FatalError unless the file at `path` is this one, byte for byte."""
        size = path.stat().st_size
        if size != self.size:
            raise FatalError(
                f"{path} has {size} bytes instead of {self.size}: truncated or another version; {self.remedy}"
            )
        # One call over the map, not a loop of reads: it lets go of the interpreter once, so that imports go on
        # meanwhile.
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            found = hashlib.sha256(content).hexdigest()
        if found != self.sha256:
            raise FatalError(
                f"{path} is damaged or another version: sha256 {found}, expected {self.sha256}; {self.remedy}"
            )
