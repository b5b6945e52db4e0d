"""The one place that prints. Whatever is in a name, an error or a document, it is shown, never obeyed."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from ctx_pipeline.escaping import json_text, one_line, printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

PIPED_WIDTH = 120


def say(*lines: str, err: bool = False) -> None:
    """Print lines; each stays one line, also with a newline in a file's name."""
    for line in lines:
        click.echo(one_line(line), err=err)


def say_text(text: str, *, err: bool = False) -> None:
    """Print text of several lines, such as a document's. Names in it go through `one_line` before."""
    click.echo(printable(text), err=err)


def say_json(value: object) -> None:
    """Print JSON, exact, on one line."""
    click.echo(json_text(value))


def show(table: Table) -> None:
    """Print a table as wide as the terminal, or 120 columns into a pipe."""
    from rich.console import Console

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPED_WIDTH
    Console(width=width, highlight=False).print(_Cleaned(table))


@dataclass(frozen=True)
class _Cleaned:
    """A table whose cells hold no control characters; the styles around them are rich's own."""

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        for segment in console.render(self.table, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)
