"""The command line is a contract: JSON shapes, exit codes, one-line errors, nothing else on standard output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project import Project

TEXT = """# Planes

Intro.

## Plan Free

Sesenta peticiones.

## Plan Pro

El límite sube a 1.000 peticiones por minuto.
"""


def test_a_first_refresh_prints_the_contract_and_search_finds(project: Project) -> None:
    project.write("planes.md", TEXT)
    project.write("bad.md", b"\x80")
    done = project.command("refresh", "--json")
    assert done.returncode == 1, "a document failed in this run"
    reply = json.loads(done.stdout)
    assert set(reply) == {
        *("run_id", "documents", "removed", "not_indexed", "chunks", "contexts", "vectors", "usage", "seconds")
    }
    assert reply["documents"] == {"added": 1, "changed": 0, "removed": 0, "unchanged": 0, "failed": 1, "skipped": 0}
    assert reply["contexts"] == {"written": 3, "reused": 0, "fallback": 0, "pending": 0, "earlier_wording": 0}
    assert reply["vectors"] == {"embedded": 3, "reused": 0}
    assert set(reply["usage"]) == {"input", "cache_write", "cache_read", "output", "usd"}
    assert "docs/bad.md: not valid UTF-8" in done.stderr

    with project.instance() as instance:
        run_record = instance.get_run_by_id(reply["run_id"])
    assert run_record is not None
    assert run_record.status.value == "FAILURE"

    done = project.command("refresh")
    assert done.returncode == 0, "a standing failure is a warning"
    assert "nothing to do" in done.stdout
    assert "failed before" in done.stderr
    done = project.command("search", "límite por minuto", "-k", "1", "--json")
    assert done.returncode == 0
    (hit,) = json.loads(done.stdout)
    assert set(hit) == {
        "chunk_id",
        "doc_id",
        "score",
        "text",
        "context",
        "heading_path",
        "start",
        "end",
        "line",
        "page",
    }
    assert hit["context"] == "Planes › Plan Pro"
    assert "1.000 peticiones" in project.command("search", "límite por minuto").stdout
    shown = json.loads(project.command("show", "planes.md", "--json").stdout)
    assert [row["text"].splitlines()[0] for row in shown] == ["# Planes", "## Plan Free", "## Plan Pro"]
    assert "context (written): Planes › Plan Pro" in project.command("show", "docs/planes.md").stdout
    status = project.command("status", "--json")
    assert status.returncode == 1, "a document failed"
    assert json.loads(status.stdout)["chunks"] == 3


def test_status_and_doctor_are_content_with_a_fresh_index(project: Project) -> None:
    project.write("planes.md", TEXT)
    assert project.command("refresh").returncode == 0
    status = project.command("status")
    assert (status.returncode, "owed       nothing" in status.stdout) == (0, True)
    doctor = project.command("doctor")
    assert (doctor.returncode, doctor.stdout) == (
        0,
        "everything agrees: sources, ledger, tables, indexes and partition keys\n",
    )


def test_a_dry_run_tells_the_work_and_does_none(project: Project) -> None:
    project.write("planes.md", TEXT)
    done = project.command("refresh", "--dry-run", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["work"] == [{"doc_id": "docs/planes.md", "stage": "documents", "reason": "new"}]
    assert not (project.root / "index").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["search", "x"], 1, "no index at"),
        (["show", "x.md"], 1, "no index at"),
        (["nonsense"], 2, "No such command"),
        (["search"], 2, "Missing argument"),
        (["search", "x", "-k", "0"], 2, "is not in the range"),
        (["search", "x", "--mode", "fuzzy"], 2, "is not one of"),
    ],
)
def test_wrong_use_is_one_line_and_its_exit_code(
    arguments: list[str], code: int, message: str, project: Project
) -> None:
    done = project.command(*arguments)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_bad_settings_file_is_named_by_every_command(project: Project) -> None:
    (project.root / "ctx.toml").write_text("[chunking]\nmax_token = 5\n")
    for arguments in (["refresh"], ["status"], ["search", "x"], ["show", "x"], ["doctor"]):
        done = project.command(*arguments)
        assert done.returncode == 2
        assert done.stderr.strip().count("\n") == 0
        allowed = "max_tokens, overlap, semantic_percentile, strategy"
        assert f"ctx.toml: chunking.max_token: unknown key; allowed here: {allowed}" in done.stderr


def test_no_source_is_wrong_use(project: Project) -> None:
    project.source_lines = ""
    project.write_settings()
    done = project.command("refresh")
    assert done.returncode == 2
    assert "names no [[source]]" in done.stderr


def test_a_source_that_cannot_be_read_is_wrong_use_while_nothing_is_indexed(project: Project) -> None:
    project.docs.rmdir()
    for arguments in (["refresh"], ["refresh", "--source", str(project.root / "nowhere")]):
        done = project.command(*arguments)
        assert done.returncode == 2
        assert str(project.root) in done.stderr
        assert not (project.root / "index").exists()


def test_a_folder_without_documents_says_what_would_be_one(project: Project) -> None:
    project.write("picture.png", b"PNG")
    done = project.command("refresh")
    assert done.returncode == 0
    assert "is a document (include: *.md" in done.stderr


def test_source_replaces_the_configured_ones(project: Project, tmp_path: Path) -> None:
    other = tmp_path / "other docs"
    other.mkdir()
    (other / "x.md").write_text("# X\n\nText.\n")
    done = project.command("refresh", "--source", str(other), "--json")
    assert json.loads(done.stdout)["documents"]["added"] == 1
    assert project.documents() == {"docs/x.md"}


def test_an_unforeseen_error_is_one_line_and_the_run_says_more(project: Project) -> None:
    project.write("planes.md", TEXT)
    project.command("refresh")
    for manifest in (project.root / "index" / "ledger.lance" / "_versions").iterdir():
        manifest.write_bytes(b"garbage")
    done = project.command("refresh")
    assert done.returncode == 1
    assert done.stderr.strip().count("\n") == 0
    assert "Traceback" not in done.stderr


def test_a_closed_pipe_is_no_error(project: Project) -> None:
    project.write("planes.md", TEXT)
    project.command("refresh")
    command = f"{sys.executable} -m ctx_pipeline.cli show planes.md | true"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        env={**os.environ, **project.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
