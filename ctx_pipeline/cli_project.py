"""Commands around a project of one's own: begin one, open the UI, list what is indexed."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import click

from ctx_pipeline.cli_options import DONE, json_option, open_pipeline
from ctx_pipeline.errors import SettingsError, counted
from ctx_pipeline.settings_file import settings_file, write_settings
from ctx_pipeline.terminal import say, say_json


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False), default=".")
def init(folder: Path) -> int:
    """Write a short ctx.toml here, for the documents in FOLDER (default: this folder)."""
    path = settings_file()
    if path.exists():
        raise SettingsError(f"{path} exists already; edit it, or go to another folder")
    write_settings(path, folder)
    say(f"{path} written: documents of {folder.absolute()}, index in {path.parent / '.ctx'}")
    say("next: `ctx-pipeline refresh`, then `ctx-pipeline search QUESTION`, or `ctx-pipeline dev` for the UI")
    return DONE


@click.command()
@click.option("--port", "-p", default=3000, show_default=True, type=click.IntRange(1, 65_535), help="Of the UI.")
def dev(port: int) -> None:
    """Open the Dagster UI over this project; Ctrl-C ends it."""
    from importlib.util import find_spec

    if find_spec("dagster_webserver") is None:
        raise SettingsError("the UI needs the package dagster-webserver: `pip install 'ctx-pipeline[ui]'`")
    from ctx_pipeline.defs.launch import dagster_home

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise SettingsError(f"port {port} cannot be used ({error.strerror}); name another one by --port") from None
    open_pipeline()  # wrong settings are told here, in one line, and not in the UI
    environment = {**os.environ, "CTX_CONFIG": str(settings_file()), "DAGSTER_HOME": str(dagster_home())}
    command = [sys.executable, "-m", "dagster", "dev", "-m", "ctx_pipeline.definitions", "-p", str(port)]
    say(f"the UI comes up on http://localhost:{port} in some 20 seconds; Ctrl-C ends it", err=True)
    os.execve(sys.executable, command, environment)


@click.command()
@json_option
def documents(as_json: bool) -> int:
    """List what is indexed: documents with their chunks, language and title."""
    from ctx_pipeline.inspection import indexed_documents

    found = indexed_documents(open_pipeline())
    if as_json:
        say_json(found)
        return DONE
    width = max((len(str(document["chunks"])) for document in found), default=1)
    for document in found:
        title = f"  {document['title']}" if document["title"] else ""
        failure = f"  (failed: {document['failure']})" if document["failure"] else ""
        say(f"{document['chunks']:{width}}  {document['language']:3}  {document['doc_id']}{title}{failure}")
    say(counted(len(found), "document"), err=True)
    return DONE
