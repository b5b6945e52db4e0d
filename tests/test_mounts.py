"""A volume that is not mounted is not taken for deleted documents."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ctx_pipeline.documents import source as source_module
from ctx_pipeline.documents.source import scan
from ctx_pipeline.index.ledger import Ledger
from ctx_pipeline.settings import SourceSettings
from tests.project import Project

TEXT = "# Title\n\nText.\n"


class Devices:
    """Which folders are mount points: each has a device of its own, which what is below it shares."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.root, self.mounted, self.offset = root, set[str](), 0
        self._own = root.stat().st_dev
        monkeypatch.setattr(source_module, "_device", self._device)

    def _device(self, folder: Path) -> int:
        names = folder.relative_to(self.root).parts
        above = ["/".join(names[: n + 1]) for n in range(len(names))]
        inner = [place for place in above if place in self.mounted]
        return self._own + self.offset + 1_000 + len(inner[-1]) if inner else self._own


@pytest.fixture
def devices(project: Project, monkeypatch: pytest.MonkeyPatch) -> Devices:
    return Devices(monkeypatch, project.docs)


def remembered(project: Project) -> list[str]:
    return list(json.loads(project.pipeline().store.state().get("mounts:docs", "[]")))


def empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def test_a_folder_on_another_device_than_its_parent_s_is_a_mount_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("a/b/c", "d", "skipped"):
        (tmp_path / place).mkdir(parents=True)
    devices = Devices(monkeypatch, tmp_path)
    source = SourceSettings(name="docs", path=tmp_path, exclude=(".*", "skipped"))
    assert scan(source, {}).mounts == frozenset()
    devices.mounted = {"a/b", "skipped"}
    assert scan(source, {}).mounts == {"docs/a/b"}, "not what is below it"
    before = ["docs/a/b", "docs/gone", "docs/d", "docs/skipped/x"]
    found = scan(source, {}, mounts=before)
    assert found.unmounted == {"docs/gone", "docs/d"}, "what the user leaves out is forgotten"


def test_a_mount_point_that_cannot_be_looked_at_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "locked").mkdir()
    real = source_module._list

    def denied(folder: Path) -> object:
        if folder.name == "locked":
            raise PermissionError(13, "Permission denied")
        return real(folder)

    monkeypatch.setattr(source_module, "_list", denied)
    found = scan(SourceSettings(name="docs", path=tmp_path), {}, mounts=["docs/locked/volume"])
    assert (found.mounts, found.unmounted) == ({"docs/locked/volume"}, frozenset())


@pytest.mark.parametrize("left", ["an empty folder", "nothing"])
def test_documents_of_a_volume_that_is_gone_stay_and_come_back_with_it(
    project: Project, devices: Devices, left: str
) -> None:
    devices.mounted = {"volume"}
    for name in ("volume/a.md", "volume/deep/b.md", "c.md", "d.md"):
        project.write(name, TEXT + name)
    project.refresh()
    assert remembered(project) == ["docs/volume"]
    shutil.copytree(project.docs / "volume", project.root / "kept")
    devices.mounted = set()
    empty(project.docs / "volume") if left == "an empty folder" else shutil.rmtree(project.docs / "volume")
    (project.docs / "d.md").unlink()
    summary = project.refresh()
    assert summary.removed_documents == ["docs/d.md"], "an ordinary deletion goes on"
    assert "docs/volume: a mount point before" in summary.warnings[0]
    assert {"docs/volume/a.md", "docs/volume/deep/b.md"} <= project.documents()
    assert remembered(project) == ["docs/volume"]
    shutil.rmtree(project.docs / "volume", ignore_errors=True)
    shutil.copytree(project.root / "kept", project.docs / "volume")
    devices.mounted, devices.offset = {"volume"}, 77
    assert project.refresh().removed == 0
    (project.docs / "volume/a.md").unlink()
    assert project.refresh().removed_documents == ["docs/volume/a.md"], "mounted, under another number"


def test_a_volume_that_is_given_up_is_forgotten(project: Project, devices: Devices) -> None:
    devices.mounted = {"volume"}
    for name in ("volume/a.md", "b.md"):
        project.write(name, TEXT + name)
    project.refresh()
    devices.mounted = set()
    empty(project.docs / "volume")
    assert project.refresh(allow_mass_delete=True).removed_documents == ["docs/volume/a.md"]
    assert remembered(project) == []
    project.write("volume/c.md", TEXT)
    project.refresh()
    (project.docs / "volume/c.md").unlink()
    assert project.refresh().removed == 1, "an ordinary folder now"


def test_a_volume_is_remembered_before_its_documents_are_indexed(project: Project, devices: Devices) -> None:
    devices.mounted = {"volume"}
    for name in ("volume/a.md", "b.md"):
        project.write(name, TEXT + name)

    def killed(point: str) -> None:
        if point == "ledger":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        project.refresh(on_commit=killed)
    assert Ledger.read(project.pipeline().store).rows
    assert remembered(project) == ["docs/volume"]


def test_a_folder_that_becomes_a_volume_without_an_edit_is_remembered_too(project: Project, devices: Devices) -> None:
    for name in ("volume/a.md", "b.md"):
        project.write(name, TEXT + name)
    project.refresh()
    devices.mounted = {"volume"}
    pipeline = project.pipeline()
    pipeline.settle(pipeline.plan())
    assert remembered(project) == ["docs/volume"]
    versions = project.versions()
    pipeline.settle(pipeline.plan())
    assert project.versions() == versions, "nothing changed, nothing is written"


def test_an_empty_root_deletes_nothing_by_itself(project: Project) -> None:
    project.write("a.md", TEXT)
    project.refresh()
    empty(project.docs)
    project.write("notes.pdf", b"\x00")
    summary = project.refresh()
    [warning] = summary.warnings
    assert "'docs' has no document any more" in warning
    assert project.documents() == {"docs/a.md"}
    assert not project.pipeline().plan().owed
    assert project.refresh(allow_mass_delete=True).removed_documents == ["docs/a.md"]
    assert project.documents() == set()
