"""A crash loses nothing: SIGKILL at each named commit point and at random moments, then a rerun.

Between kill and rerun the world may change: nothing, the edit undone, the file deleted, restored, a setting put back.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest

from ctx_pipeline.doctor import diagnose
from ctx_pipeline.index.ledger import Ledger
from ctx_pipeline.index.lock import is_locked
from tests.project import SEARCH_COLUMNS, Project

ROOT = Path(__file__).parents[1]
BEFORE = "# Cuotas\n\nIntro.\n\n## Plan Free\n\nSesenta peticiones por minuto.\n\n## Plan Pro\n\nMil peticiones.\n"
AFTER = BEFORE.replace("Mil", "Dos mil") + "\n## Plan Scale\n\nSeis mil peticiones.\n"

POINTS = [
    "keys", "marked", "documents", "chunks", "contexts", "search", "events", "ledger",
    "removal marked", "removed from search", "removed from contexts", "removed from chunks", "removed from documents",
    "keys removed", "removal done",
]  # fmt: skip


def prepare(project: Project) -> None:
    """Four documents indexed; then one edited, one added, one deleted, one renamed."""
    for name in ("edited", "deleted", "renamed", "kept"):
        project.write(f"{name}.md", BEFORE.replace("Cuotas", name))
    project.refresh()
    project.write("edited.md", AFTER.replace("Cuotas", "edited"))
    project.write("added.md", AFTER.replace("Cuotas", "added"))
    (project.docs / "deleted.md").unlink()
    (project.docs / "renamed.md").rename(project.docs / "anew.md")


def undo_edit(project: Project) -> None:
    project.write("edited.md", BEFORE.replace("Cuotas", "edited"))


def delete_edited_and_added(project: Project) -> None:
    (project.docs / "edited.md").unlink()
    (project.docs / "added.md").unlink()


def restore_deleted(project: Project) -> None:
    project.write("deleted.md", BEFORE.replace("Cuotas", "deleted"))
    (project.docs / "anew.md").rename(project.docs / "renamed.md")


def nothing(project: Project) -> None:
    pass


def other_setting(project: Project) -> None:
    project.write_settings(chunking={"max_tokens": 40})


CHANGES: list[Callable[[Project], None]] = [nothing, undo_edit, delete_edited_and_added, restore_deleted, other_setting]


def kill_refresh(project: Project, point: str, nth: int = 1) -> list[str]:
    """Run a refresh that kills itself there; the commit points it reached."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.killed_refresh", point, str(nth)],
        cwd=ROOT,
        env={**os.environ, **project.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    if not point.startswith("after-ms"):
        assert done.returncode == -signal.SIGKILL, f"{point} was never reached: {done.stdout}"
    return done.stdout.splitlines()


def assert_sound(project: Project, fresh: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a rerun: the rows of an undisturbed build, keys and ledger agree, no run is left started."""
    result, _ = project.dagster_refresh(monkeypatch)
    assert result.success
    for path in sorted(project.docs.rglob("*.md")):
        fresh.write(str(path.relative_to(project.docs)), path.read_bytes())
    fresh.write_settings(**{name: values for name, values in project.sections.items() if name != "storage"})
    fresh.refresh()
    assert project.search_rows() == fresh.search_rows()
    ledger = Ledger.read(project.pipeline().store)
    assert set(ledger.rows) == project.keys() == project.documents()
    assert not [row.doc_id for row in ledger.rows.values() if row.writing or row.failure]
    assert diagnose(project.pipeline(), project.keys) == []
    with project.instance() as instance:
        started = instance.get_runs(filters=dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))
    assert started == []


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_commit_point(
    point: str, project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = CHANGES[POINTS.index(point) % len(CHANGES)]
    prepare(project)
    kill_refresh(project, point)
    change(project)
    assert_sound(project, Project(tmp_path / "fresh"), monkeypatch)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("point", ["chunks", "search"])
def test_whatever_happens_between_the_kill_and_the_rerun(
    point: str, change: Callable[[Project], None], project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(project)
    kill_refresh(project, point)
    change(project)
    assert_sound(project, Project(tmp_path / "fresh"), monkeypatch)


def test_a_setting_put_back_after_a_kill_in_the_middle_of_its_change(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(project)
    project.refresh()
    project.write_settings(search={"languages": ["English"]})
    kill_refresh(project, "search")
    assert set(project.pipeline().store.search_tables()) == {"search_1", "search_2"}
    project.write_settings(search={"languages": ["Spanish", "English"]})
    assert_sound(project, Project(tmp_path / "fresh"), monkeypatch)
    assert project.pipeline().store.search_tables().keys() == {"search_1"}


def test_every_durable_step_is_a_kill_point_of_this_module(project: Project) -> None:
    prepare(project)
    done = subprocess.run(
        [sys.executable, "-m", "tests.killed_refresh", "never"],
        cwd=ROOT,
        env={**os.environ, **project.environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(done.stdout.splitlines()) == set(POINTS)


def test_killed_at_random_moments_while_a_reader_watches(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"kept{n}" for n in range(20)] + [f"gone{n}" for n in range(3)]
    for name in names:
        project.write(f"{name}.md", BEFORE.replace("Cuotas", name))
    project.refresh()
    uri = str(project.settings.storage.uri)
    reader = subprocess.Popen(
        [sys.executable, "-m", "tests.watching_reader", uri],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        chance = random.Random(7)
        for round_ in range(3):
            for name in names[:20]:
                project.write(f"{name}.md", AFTER.replace("Cuotas", f"{name} in round {round_}"))
            (project.docs / f"gone{round_}.md").unlink()
            kill_refresh(project, f"after-ms:{chance.uniform(50, 900):.0f}")
            assert not is_locked(project.settings.storage.uri)
        told, _ = reader.communicate("")
    finally:
        reader.kill()
        reader.wait()
    seen = json.loads(told)
    assert seen["problems"] == []
    assert seen["watched"] == 20
    assert seen["reads"] > 3
    assert_sound(project, Project(tmp_path / "fresh"), monkeypatch)


def test_two_refreshes_at_once_lose_and_double_nothing(project: Project, tmp_path: Path) -> None:
    shutil.rmtree(project.root / "dagster_home")  # two first ones: they make the instance as well
    for n in range(6):
        project.write(f"d{n}.md", BEFORE.replace("Cuotas", f"Doc {n}"))
    command = [sys.executable, "-m", "ctx_pipeline.cli", "refresh", "--json"]
    runs = [
        subprocess.Popen(
            command, env={**os.environ, **project.environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(2)
    ]
    outputs = [run.communicate() for run in runs]
    assert [run.returncode for run in runs] == [0, 0], outputs
    fresh = Project(tmp_path / "fresh")
    for path in project.docs.iterdir():
        fresh.write(path.name, path.read_bytes())
    fresh.refresh()
    assert project.search_rows(SEARCH_COLUMNS) == fresh.search_rows()
    events = project.events()["search_index"]
    assert sorted(partition for partition, _ in events) == [f"docs/d{n}.md" for n in range(6)]


def test_a_refresh_and_a_partitioned_run_at_once(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(4):
        project.write(f"d{n}.md", BEFORE.replace("Cuotas", f"Doc {n}"))
    project.refresh()
    with project.instance() as instance:
        instance.add_dynamic_partitions("documents", [f"docs/d{n}.md" for n in range(4)])
    for n in range(4):
        project.write(f"d{n}.md", AFTER.replace("Cuotas", f"Doc {n}"))
    refresh = subprocess.Popen(
        [sys.executable, "-m", "ctx_pipeline.cli", "refresh"],
        env={**os.environ, **project.environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assets = ("raw_documents", "chunks", "contexts", "search_index")
    for _ in range(3):
        assert project.materialize(monkeypatch, *assets, span=("docs/d0.md", "docs/d3.md")).success
    _, errors = refresh.communicate()
    assert refresh.returncode == 0, errors
    assert_sound(project, Project(tmp_path / "fresh"), monkeypatch)


def test_a_kill_while_tables_are_made_or_dropped_leaves_nothing_that_blocks(project: Project) -> None:
    project.write("a.md", BEFORE)
    for name in ("state", "contexts", "search_1"):
        (project.root / "index" / f"{name}.lance" / "_transactions").mkdir(parents=True)
    assert project.refresh().added == 1
    rows = project.search_rows()
    (project.root / "index" / "search_9.lance" / "_transactions").mkdir(parents=True)
    shutil.rmtree(project.root / "index" / "documents.lance" / "_versions")
    assert [work.doc_id for work in project.pipeline().plan().work] == ["docs/a.md"]
    project.refresh()
    assert project.search_rows() == rows
    assert diagnose(project.pipeline(), project.keys_of_ledger) == []
