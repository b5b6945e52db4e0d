"""A folder of documents with its settings, storage and Dagster instance, as tests work on it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import dagster as dg

from ctx_pipeline.definitions import build_definitions
from ctx_pipeline.defs.launch import INSTANCE_SETTINGS
from ctx_pipeline.defs.refresh import JOB, NAME, Report
from ctx_pipeline.documents.model import doc_id_of
from ctx_pipeline.index.ledger import Ledger
from ctx_pipeline.index.lock import storage_lock
from ctx_pipeline.index.stages import ASSETS
from ctx_pipeline.refresh import Pipeline
from ctx_pipeline.settings import Settings
from ctx_pipeline.settings_file import load_settings
from ctx_pipeline.summary import RefreshOptions, Summary

SEARCH_COLUMNS = (
    "chunk_id", "doc_id", "ordinal", "start", "end", "line", "page", "text", "context", "context_status",
    "heading_path", "title", "language", "metadata", "vector", "embed_key", "text_spanish", "text_english",
    "identifiers", "content_hash", "version",
)  # fmt: skip
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


class Project:
    """`root` holds ctx.toml, docs/, index/ and dagster_home/."""

    dagster_template: Path | None = None
    """An instance's folder with its databases made; making them takes longer than most tests."""

    def __init__(self, root: Path, **sections: Mapping[str, Any]) -> None:
        self.root = root
        self.docs = root / "docs"
        self.docs.mkdir(parents=True)
        if self.dagster_template is not None:
            shutil.copytree(self.dagster_template, root / "dagster_home")
        else:
            make_dagster_home(root / "dagster_home")
        self.sections: dict[str, dict[str, Any]] = {name: dict(values) for name, values in sections.items()}
        self.source_lines = f'name = "docs"\npath = "{self.docs}"\n'
        self.write_settings()

    def write_settings(self, **sections: Mapping[str, Any]) -> None:
        """Write ctx.toml; `sections` are merged into the settings so far."""
        for name, values in sections.items():
            self.sections.setdefault(name, {}).update(values)
        self.sections.setdefault("embedding", {}).setdefault("model", "hashing")
        self.sections.setdefault("storage", {}).setdefault("uri", str(self.root / "index"))
        lines = [f"[[source]]\n{self.source_lines}"] if self.source_lines else []
        for name, values in self.sections.items():
            lines.append(f"[{name}]")
            lines += [f"{key} = {_toml(value)}" for key, value in values.items()]
        (self.root / "ctx.toml").write_text("\n".join(lines))

    def write_prices(self, model: str, usd_per_token: float) -> Path:
        """Write a file in which that Claude model alone has a price, and name it in ctx.toml."""
        rates = ("input", "output", "cache_write_5m", "cache_write_1h", "cache_read")
        path = self.root / "prices.toml"
        path.write_text(
            f'checked = "2026-11"\n[models."{model}"]\n'
            + "".join(f"{name} = {usd_per_token * 1_000_000}\n" for name in rates)
            + "batch_factor = 1\nmin_cacheable_tokens = 0\ncontext_window_tokens = 200_000\n"
        )
        self.write_settings(contexts={"prices": str(path)})
        return path

    @property
    def environment(self) -> dict[str, str]:
        """What a command needs to work on this project."""
        return {"CTX_CONFIG": str(self.root / "ctx.toml"), "DAGSTER_HOME": str(self.root / "dagster_home")}

    @property
    def settings(self) -> Settings:
        """The settings of ctx.toml alone."""
        return load_settings({"CTX_CONFIG": str(self.root / "ctx.toml")})

    def write(self, name: str, text: str | bytes) -> Path:
        """Write a document."""
        path = self.docs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def pipeline(self) -> Pipeline:
        """The pipeline of the settings."""
        return Pipeline(self.settings)

    def refresh(self, *, on_commit: Callable[[str], None] = lambda point: None, **options: bool) -> Summary:
        """A refresh without Dagster."""
        pipeline = self.pipeline()
        with storage_lock(pipeline.store.uri, "a test"):
            return pipeline.refresh("run-of-a-test", options=RefreshOptions(**options), on_commit=on_commit)

    def command(
        self, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the command line in a process of its own, in the project's folder where an environment is given."""
        return subprocess.run(
            [sys.executable, "-m", "ctx_pipeline.cli", *arguments],
            env={**os.environ, **(self.environment if environment is None else environment)},
            cwd=None if environment is None else self.root,
            capture_output=True,
            text=True,
            check=False,
        )

    def instance(self) -> dg.DagsterInstance:
        """The project's Dagster instance."""
        return dg.DagsterInstance.from_config(str(self.root / "dagster_home"))

    def dagster_refresh(self, monkeypatch: Any, **options: bool) -> tuple[dg.ExecuteInProcessResult, Report]:
        """A refresh as a Dagster run in this process."""
        for name, value in self.environment.items():
            monkeypatch.setenv(name, value)
        report = Report()
        job = build_definitions(report=report).resolve_job_def(JOB)
        with self.instance() as instance:
            config = {**QUIET, "ops": {NAME: {"config": options}}}
            return job.execute_in_process(instance=instance, raise_on_error=False, run_config=config), report

    def materialize(
        self, monkeypatch: Any, *assets: str, key: str | None = None, span: tuple[str, str] | None = None
    ) -> dg.ExecuteInProcessResult:
        """Materialize assets for one partition or a range, as the UI's button does."""
        for name, value in self.environment.items():
            monkeypatch.setenv(name, value)
        job = build_definitions().resolve_implicit_global_asset_job_def()
        tags = (
            {"dagster/asset_partition_range_start": span[0], "dagster/asset_partition_range_end": span[1]}
            if span
            else {}
        )
        with self.instance() as instance:
            return job.execute_in_process(
                instance=instance,
                raise_on_error=False,
                run_config=QUIET,
                partition_key=key,
                tags=tags,
                asset_selection=[dg.AssetKey(name) for name in assets],
            )

    def search_rows(self, columns: tuple[str, ...] = SEARCH_COLUMNS) -> list[dict[str, Any]]:
        """All rows of the live search table, by chunk_id."""
        pipeline = self.pipeline()
        live = pipeline.search_tables().live
        rows = pipeline.store.all_rows(live, columns).to_pylist() if live else []
        return sorted(rows, key=lambda row: row["chunk_id"])

    def documents(self) -> set[str]:
        """Documents with rows in the live search table."""
        return {row["doc_id"] for row in self.search_rows(("chunk_id", "doc_id"))}

    def keys(self) -> set[str]:
        """Documents with a partition key."""
        with self.instance() as instance:
            return {doc_id_of(key) for key in instance.get_dynamic_partitions("documents")}

    def keys_of_ledger(self) -> set[str]:
        """Documents in the ledger."""
        return set(Ledger.read(self.pipeline().store).rows)

    def events(self) -> dict[str, list[tuple[str, str]]]:
        """Materializations of each asset so far, oldest first: (partition, data version)."""
        found: dict[str, list[tuple[str, str]]] = {}
        with self.instance() as instance:
            for asset in ASSETS.values():
                records = instance.fetch_materializations(dg.AssetKey(asset), limit=10_000, ascending=True).records
                found[asset] = [
                    (event.partition or "", (event.tags or {}).get("dagster/data_version", ""))
                    for record in records
                    if (event := record.asset_materialization) is not None
                ]
        return found

    def versions(self) -> dict[str, int]:
        """The version number of every table: any commit changes one."""
        store = self.pipeline().store
        return {name: store.table(name).version for name in sorted(store.names())} if store.exists() else {}


def make_dagster_home(folder: Path) -> None:
    """Write the settings of an instance as the command line does, and make its databases."""
    folder.mkdir()
    (folder / "dagster.yaml").write_text(INSTANCE_SETTINGS)
    with dg.DagsterInstance.from_config(str(folder)) as instance:
        instance.get_runs(limit=1)
        instance.get_dynamic_partitions("documents")
        instance.fetch_materializations(dg.AssetKey("none"), limit=1)


def age(folder: Path, seconds: float = 60) -> None:
    """Make every file below `folder` look as if it was written some time ago, so that a scan trusts its mtime."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            status = path.stat()
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns - int(seconds * 1e9)))


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return str(value) if isinstance(value, int | float) else '"' + str(value).replace("\\", "\\\\") + '"'
