"""A folder of one's own: the settings file is written for it, the UI is opened over it, its documents are listed."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from ctx_pipeline import cli
from ctx_pipeline.settings_file import load_settings
from tests.project import Project


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory without settings."""
    for name in [name for name in os.environ if name.startswith("CTX_") or name == "DAGSTER_HOME"]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The command in this process; its exit code."""
    monkeypatch.setattr(sys, "argv", ["ctx-pipeline", *arguments])
    monkeypatch.setattr(os, "umask", lambda mask: 0)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_init_writes_settings_for_a_folder(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    (here / 'my "notes"').mkdir()
    assert run(monkeypatch, "init", 'my "notes"') == 0
    settings = load_settings({})
    assert settings.source[0].path == here / 'my "notes"'
    assert settings.storage.uri == here / ".ctx" / "index"
    assert "ctx-pipeline refresh" in capsys.readouterr().out


def test_init_overwrites_nothing(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    (here / "ctx.toml").write_text("# mine\n")
    assert run(monkeypatch, "init") == 2
    assert (here / "ctx.toml").read_text() == "# mine\n"
    assert "exists already" in capsys.readouterr().err


def test_a_folder_elsewhere_is_named_whole(here: Path, tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    assert run(monkeypatch, "init", str(elsewhere)) == 0
    assert load_settings({}).source[0].path == elsewhere


def test_the_bare_command_shows_help(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    assert run(monkeypatch) == 0
    assert "refresh" in capsys.readouterr().out


def test_a_source_named_once_is_remembered(project: Project) -> None:
    (project.root / "ctx.toml").unlink()
    project.write("a.md", "# One\n\nThe limit is 5.\n")
    environment = {"CTX_EMBEDDING__MODEL": "hashing", "DAGSTER_HOME": str(project.root / "dagster_home")}
    done = project.command("refresh", "--source", "docs", environment=environment)
    assert done.returncode == 0, done.stderr
    assert "ctx.toml written" in done.stderr
    again = project.command("search", "limit", "--json", environment=environment)
    assert [hit["doc_id"] for hit in json.loads(again.stdout)] == ["docs/a.md"]


def test_documents_are_listed(project: Project, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    project.write("a.md", "# One\n\nThe limit of the plan is five requests.\n")
    project.write("bad.md", b"\x80")
    project.refresh()
    for name, value in project.environment.items():
        monkeypatch.setenv(name, value)
    assert run(monkeypatch, "documents", "--json") == 0
    found = {document["doc_id"]: document for document in json.loads(capsys.readouterr().out)}
    assert (found["docs/a.md"]["title"], found["docs/a.md"]["chunks"]) == ("One", 1)
    assert "UTF-8" in found["docs/bad.md"]["failure"]
    assert run(monkeypatch, "documents") == 0
    assert "docs/a.md  One" in capsys.readouterr().out


def test_dev_starts_dagster_over_these_settings(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in project.environment.items():
        monkeypatch.setenv(name, value)
    started: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *arguments: started.append(arguments))
    assert run(monkeypatch, "dev", "--port", "3999") == 0
    [(_, command, environment)] = started
    assert command[1:] == ["-m", "dagster", "dev", "-m", "ctx_pipeline.definitions", "-p", "3999"]
    assert environment["CTX_CONFIG"] == str(project.root / "ctx.toml")
    assert environment["DAGSTER_HOME"] == str(project.root / "dagster_home")


def test_dev_tells_of_wrong_settings_first(project: Project, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    project.write_settings(chunking={"max_tokens": 1})
    monkeypatch.setenv("CTX_CONFIG", str(project.root / "ctx.toml"))
    monkeypatch.setenv("DAGSTER_HOME", str(project.root / "dagster_home"))
    assert run(monkeypatch, "dev") == 2
    assert "chunking.max_tokens" in capsys.readouterr().err


def test_dev_names_a_port_that_is_taken(project: Project, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    for name, value in project.environment.items():
        monkeypatch.setenv(name, value)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert run(monkeypatch, "dev", "--port", str(port)) == 2
    assert f"port {port} cannot be used" in capsys.readouterr().err
