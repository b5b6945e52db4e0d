"""An index and Dagster's history hold the text of documents: what is made for them is for their owner alone."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctx_pipeline.defs.launch import open_instance
from ctx_pipeline.embedding.model_cache import cached
from ctx_pipeline.evaluation.report import write_file
from ctx_pipeline.exposure import exposure
from ctx_pipeline.index.lock import is_locked, storage_lock
from ctx_pipeline.index.tables import Store
from ctx_pipeline.private_files import make_folder
from tests.project import Project

pytestmark = pytest.mark.skipif(os.name == "nt", reason="modes are POSIX's")
TEXT = "# Planes\n\n## Pro\n\nMil peticiones.\n"


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def open_to_others(folder: Path) -> list[str]:
    paths = [folder, *folder.rglob("*")]
    return [f"{oct(mode(path))} {path}" for path in paths if mode(path) & 0o077]


def test_all_that_a_refresh_of_the_command_line_makes_is_private(project: Project) -> None:
    project.write("planes.md", TEXT)
    project.write_settings(storage={"uri": str(project.root / "made/for it/index")})
    home = project.root / "new" / "home"
    done = subprocess.run(
        [sys.executable, "-m", "ctx_pipeline.cli", "refresh"],
        env={**os.environ, **project.environment, "DAGSTER_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (home / "history").is_dir() and (project.root / "made/for it/index/ledger.lance").is_dir()
    assert open_to_others(project.root / "made") == open_to_others(project.root / "new") == []


def test_a_host_s_process_keeps_its_umask_and_the_index_is_private_all_the_same(project: Project) -> None:
    project.write("planes.md", TEXT)
    project.refresh()
    assert os.umask(0o022) == 0o022
    index = project.root / "index"
    assert mode(index) == 0o700
    assert mode(index / ".writer.lock") == mode(index / ".writer.json") == 0o600
    assert not is_locked(index)
    assert mode(index / ".writer.lock") == 0o600, "asking changes no mode"


def test_an_instance_made_here_is_private(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = tmp_path / "a" / "home"
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    with open_instance():
        assert mode(home) == mode(home.parent) == 0o700
        assert mode(home / "dagster.yaml") == mode(home / ".opening.lock") == 0o600


def test_a_folder_that_was_there_keeps_the_mode_that_its_owner_gave_it(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, home = project.root / "index", project.root / "home"
    for folder in (index, home):
        folder.mkdir()
        folder.chmod(0o750)
    project.write("planes.md", TEXT)
    project.refresh()
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    with open_instance():
        assert (mode(index), mode(home)) == (0o750, 0o750)


def test_an_index_that_every_user_can_read_is_a_finding_until_its_owner_says_otherwise(project: Project) -> None:
    project.write("planes.md", TEXT)
    assert project.command("refresh").returncode == 0
    index = project.root / "index"
    assert exposure(Store(index)) == []
    index.chmod(0o755)
    done = project.command("doctor")
    assert done.returncode == 1
    assert f"permissions: every user of this machine can read the documents in {index}" in done.stdout
    assert f"chmod 700 {index}" in done.stdout
    assert mode(index) == 0o755
    for allowed in (0o750, 0o700):
        index.chmod(allowed)
        assert project.command("doctor").returncode == 0


def test_a_folder_without_an_index_is_nobody_s_finding(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert exposure(Store(tmp_path)) == exposure(Store(tmp_path / "none")) == []


def test_results_of_an_evaluation_are_private(tmp_path: Path) -> None:
    write_file(tmp_path / "results" / "queries.jsonl", b"{}\n")
    assert open_to_others(tmp_path / "results") == []


def test_missing_folders_are_made_and_a_file_in_the_way_is_an_error(tmp_path: Path) -> None:
    make_folder(tmp_path / "a/b/c")
    make_folder(tmp_path / "a/b/c")
    assert open_to_others(tmp_path / "a") == []
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OSError):
            make_folder(path)


def test_a_lock_can_be_taken_again_and_again(tmp_path: Path) -> None:
    for _ in range(2):
        with storage_lock(tmp_path / "index", "a test"):
            assert is_locked(tmp_path / "index")


def test_a_cached_model_can_be_read_by_whoever_runs_what_another_account_installed(tmp_path: Path) -> None:
    os.umask(0o077)
    cached("model", lambda: b"weights", tmp_path / "models" / "ctx")
    assert mode(tmp_path / "models") == mode(tmp_path / "models" / "ctx") == 0o755
    assert mode(tmp_path / "models" / "ctx" / "model") == 0o644
