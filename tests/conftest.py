"""Shared fixtures: a bare environment, small projects of documents, and the corpora."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.project import Project

CORPORA = Path(__file__).parents[2] / "shared" / "corpora"


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No setting, key or Dagster instance of whoever runs the tests; the working directory has no ctx.toml."""
    for name in list(os.environ):
        if name.startswith(("CTX_", "DAGSTER_", "OPENAI_", "ANTHROPIC_")):
            monkeypatch.delenv(name)
    working = tmp_path / "working"
    working.mkdir()
    monkeypatch.chdir(working)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """An empty folder of documents with settings for the hashing embedder."""
    return Project(tmp_path / "project")


@pytest.fixture(scope="session")
def e5_cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the e5 model is built once for all tests; workers of one run share it."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    yield shared / "e5-cache"


@pytest.fixture(scope="session")
def corpora() -> Path:
    """The folder of real documents; its absence is an error in CI and a skip elsewhere."""
    if not CORPORA.is_dir():
        if os.environ.get("CI"):
            pytest.fail(f"{CORPORA} is missing")
        pytest.skip(f"{CORPORA} is not on this machine: the test reads real documents")
    return CORPORA
