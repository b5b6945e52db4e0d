"""What other programs import: the public names, without the cost of what they do not use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import ctx_pipeline
from tests.project import Project

PUBLIC = ["Hit", "Pipeline", "SearchIndex", "Settings", "__version__", "build_definitions", "load_settings"]


def test_the_public_names_are_these() -> None:
    assert ctx_pipeline.__all__ == dir(ctx_pipeline) == PUBLIC
    for name in PUBLIC:
        assert getattr(ctx_pipeline, name)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = ctx_pipeline.no_such_name


def test_importing_the_package_loads_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import ctx_pipeline; print(sorted(set(sys.modules) - before))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "ctx_pipeline.refresh" not in printed
    assert not any(f"'{heavy}'" in printed for heavy in ("lancedb", "dagster", "numpy", "pydantic", "pyarrow"))


def test_an_index_is_searched_as_its_own_settings_say(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write_settings(search={"candidates": 2})
    for number in range(4):
        project.write(f"{number}.md", f"# Plan {number}\n\nThe limit of plan {number} is five requests.\n")
    project.refresh()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "ctx.toml").write_text("nonsense\n")
    monkeypatch.chdir(elsewhere)
    index = ctx_pipeline.SearchIndex.open(project.settings.storage.uri)
    hits = index.search("limit", k=1, mode="keyword")
    assert [type(hit) for hit in hits] == [ctx_pipeline.Hit]
    assert index._settings.search.candidates == 2
