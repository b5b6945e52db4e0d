"""Incremental equals from scratch: real edits, deletions and renames replayed through Dagster runs.

The stub embedder makes vectors from the text alone, so equal rows mean equal work; two steps run with e5 as well.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.project import Project

OWN_DELETIONS = {3: ["features.md"], 8: ["tutorial/testing.md", "about/index.md"], 12: ["async.md"]}
OWN_RENAMES = {5: [("benchmarks.md", "moved/benchmarks.md")], 10: [("contributing.md", "tutorial/contributing.md")]}


def replay(corpora: Path, docs: Path, step: dict) -> tuple[set[str], set[str]]:
    """Apply one commit and our own deletions and renames; (touched, deleted) doc_ids."""
    number, folder = step["step"], corpora / "fastapi-es" / "edits" / f"{step['step']:02d}"
    touched, deleted = set(), set()
    for name in [*step["added"], *step["modified"]]:
        data = (folder / name).read_bytes()
        target = docs / name
        if target.exists() and target.read_bytes() == data:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        touched.add(f"docs/{name}")
    for name in OWN_DELETIONS.get(number, []):
        if (docs / name).exists():
            (docs / name).unlink()
            deleted.add(f"docs/{name}")
            touched.discard(f"docs/{name}")
    for old, new in OWN_RENAMES.get(number, []):
        if (docs / old).exists():
            (docs / new).parent.mkdir(parents=True, exist_ok=True)
            (docs / old).rename(docs / new)
            deleted.add(f"docs/{old}")
            touched.discard(f"docs/{old}")
            touched.add(f"docs/{new}")
    return touched, deleted


def steps(corpora: Path) -> list[dict]:
    return [json.loads(line) for line in (corpora / "fastapi-es" / "edits.jsonl").read_text().splitlines()]


def test_sixteen_real_commits_give_the_index_of_a_build_from_scratch(
    corpora: Path, project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(corpora / "fastapi-es" / "base", project.docs, dirs_exist_ok=True)
    result, _ = project.dagster_refresh(monkeypatch)
    assert result.success
    assert len(project.documents()) == 115
    for step in steps(corpora):
        before = {asset: len(events) for asset, events in project.events().items()}
        touched, deleted = replay(corpora, project.docs, step)
        result, report = project.dagster_refresh(monkeypatch)
        assert result.success
        for asset, events in project.events().items():
            new = [partition for partition, _ in events[before[asset] :]]
            assert sorted(new) == sorted(touched), f"step {step['step']}, {asset}"
        assert report.summary is not None
        assert report.summary.removed == len(deleted)
        assert not deleted & project.documents()
        assert not deleted & project.keys()
        assert touched <= project.keys()

    fresh = Project(tmp_path / "fresh")
    shutil.copytree(project.docs, fresh.docs, dirs_exist_ok=True)
    fresh.refresh()
    assert project.search_rows() == fresh.search_rows()
    assert project.keys() == {row["doc_id"] for row in fresh.search_rows()} == project.documents()


def test_an_edit_with_e5_gives_the_vectors_of_a_build_from_scratch(
    corpora: Path, project: Project, tmp_path: Path, e5_cache_folder: Path
) -> None:
    e5 = {"model": "multilingual-e5-small", "path": str(e5_cache_folder)}
    project.write_settings(embedding=e5)
    names = ["advanced/dataclasses.md", "how-to/graphql.md", "advanced/websockets.md", "translation-banner.md"]
    for name in names:
        source = corpora / "fastapi-es" / "base" / name
        if source.exists():
            project.write(name, source.read_bytes())
    project.refresh()
    for number in ("01", "05"):
        for name in names:
            edited = corpora / "fastapi-es" / "edits" / number / name
            if edited.exists():
                project.write(name, edited.read_bytes())
        summary = project.refresh()
        assert summary.embedded > 0
        assert summary.truncated == 0

    fresh = Project(tmp_path / "fresh", embedding=e5)
    shutil.copytree(project.docs, fresh.docs, dirs_exist_ok=True)
    fresh.refresh()
    mine, theirs = project.search_rows(), fresh.search_rows()
    for row, other in zip(mine, theirs, strict=True):
        assert np.allclose(row.pop("vector"), other.pop("vector"), atol=1e-6)
        assert row == other


def test_a_renamed_document_embeds_nothing(project: Project) -> None:
    project.write("guide.md", "# Guide\n\nHow to begin.\n\n## Limits\n\nSixty requests a minute.\n")
    project.write("other.md", "# Other\n\nSomething else.\n")
    project.refresh()
    (project.docs / "guide.md").rename(project.docs / "handbook.md")
    summary = project.refresh()
    assert (summary.added, summary.removed, summary.embedded) == (1, 1, 0)
    assert summary.reused > 0
    assert project.documents() == {"docs/handbook.md", "docs/other.md"}


def test_an_edited_section_embeds_only_its_own_chunks(project: Project) -> None:
    sections = [f"## Part {n}\n\n" + f"Words about part {n}. " * 20 for n in range(8)]
    project.write("long.md", "# Long\n\n" + "\n\n".join(sections))
    first = project.refresh()
    sections[3] += "One more sentence."
    project.write("long.md", "# Long\n\n" + "\n\n".join(sections))
    second = project.refresh()
    assert first.embedded == 8
    assert (second.embedded, second.reused) == (1, 7)
