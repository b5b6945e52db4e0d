"""What the benchmarks share: a folder to work in, corpora, generated documents, processes measured from outside."""

from __future__ import annotations

import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
CORPORA = ROOT.parent / "shared" / "corpora"

_SUBJECTS = (
    "la factura", "el plan Pro", "cada petición", "la cuenta", "el informe mensual", "la clave",
    "the invoice", "a workspace", "each request", "the retry queue", "the audit log", "every webhook",
)  # fmt: skip
_VERBS = (
    "se envía con", "depende de", "caduca antes que", "se cobra junto a", "necesita", "sustituye a",
    "is sent with", "depends on", "expires before", "is charged with", "requires", "replaces",
)  # fmt: skip
_ENDS = (
    "dentro de {n} días", "hasta {n} veces por minuto", "por {n} euros", "desde la versión {n}",
    "within {n} days", "up to {n} times a minute", "for {n} euros", "since version {n}",
)  # fmt: skip
_TOPICS = (
    "Facturación", "Límites", "Permisos", "Copias", "Alertas", "Migración",
    "Billing", "Limits", "Permissions", "Backups", "Alerts", "Migration",
)  # fmt: skip


class Workspace:
    """A folder with ctx.toml, docs/, index/ and dagster_home/."""

    def __init__(self, root: Path, model: str, model_cache: Path) -> None:
        self.root, self.docs = root, root / "docs"
        self.docs.mkdir(parents=True)
        (root / "dagster_home").mkdir()
        (root / "dagster_home" / "dagster.yaml").write_text("telemetry: {enabled: false}\nnux: {enabled: false}\n")
        (root / "ctx.toml").write_text(
            '[[source]]\nname = "docs"\npath = "docs"\n[storage]\nuri = "index"\n'
            f"[embedding]\nmodel = '{model}'\npath = '{model_cache}'\n"
        )

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to work on this folder."""
        return {"CTX_CONFIG": str(self.root / "ctx.toml"), "DAGSTER_HOME": str(self.root / "dagster_home")}

    def copy_in(self, corpus: Path) -> None:
        """Fill docs/ with a corpus, as files that were last written a minute ago: a scan then trusts their mtime."""
        shutil.copytree(corpus, self.docs, dirs_exist_ok=True)
        self._age()

    def generate(self, count: int, edition: int) -> None:
        """Write `count` generated documents, the same for the same `edition` on every machine."""
        for number in range(count):
            path = self.docs / f"{number // 100:03d}" / f"{number:05d}.md"
            path.parent.mkdir(exist_ok=True)
            path.write_text(generated_document(number, edition), encoding="utf-8")
        self._age()

    def _age(self) -> None:
        for path in self.docs.rglob("*.md"):
            status = path.stat()
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns - 60_000_000_000))


def generated_document(number: int, edition: int, *, characters: int = 3_000) -> str:
    """Markdown in Spanish and English: sections of three levels, paragraphs, lists, tables and code."""
    chance = random.Random(f"{edition}/{number}")

    def sentence() -> str:
        end = chance.choice(_ENDS).format(n=chance.randrange(1_000))
        words = f"{chance.choice(_SUBJECTS)} {chance.choice(_VERBS)} {chance.choice(_SUBJECTS)} {end}."
        return words[0].upper() + words[1:]

    def block() -> str:
        kind = chance.random()
        if kind < 0.70:
            return " ".join(sentence() for _ in range(chance.randint(2, 5)))
        if kind < 0.85:
            return "\n".join(f"- {sentence()}" for _ in range(chance.randint(2, 5)))
        if kind < 0.95:
            rows = (f"| {chance.choice(_TOPICS)} | {chance.randrange(10_000)} |" for _ in range(chance.randint(2, 5)))
            return "\n".join(["| plan | total |", "| --- | ---: |", *rows])
        return f"```python\nlimit = {chance.randrange(1_000)}\nsend(limit, retries={chance.randrange(9)})\n```"

    parts = [f"# {chance.choice(_TOPICS)} {number}", block()]
    while sum(map(len, parts)) < characters:
        level = "#" * chance.choice((2, 2, 2, 3, 3, 4))
        parts.append(f"{level} {chance.choice(_TOPICS)} {chance.randrange(100)}")
        parts += [block() for _ in range(chance.randint(1, 3))]
    return "\n\n".join(parts) + "\n"


def corpus(name: str) -> Path:
    """A corpus's folder. Ends the program with a message when it is absent."""
    folder = CORPORA / name
    if not folder.is_dir():
        raise SystemExit(f"{folder} is absent: this part measures on real documents; put the corpus there")
    return folder


@dataclass(frozen=True, slots=True)
class Usage:
    """A process that ended: elapsed and processor seconds, peak resident bytes, and what it printed."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    output: str


def run(arguments: Sequence[str], environment: Mapping[str, str]) -> Usage:
    """Run this Python with `arguments` to its end. Ends the program with the process's errors if it fails.

    Linux counts the memory of the process that forked into the peak, so the caller imports nothing large.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("CTX_", "DAGSTER_"))}
    with tempfile.TemporaryFile() as errors:
        started = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={**inherited, **environment},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - started
        process.stdout.close()
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            problem = errors.read().decode(errors="replace")[-2_000:]
            raise SystemExit(f"{' '.join(arguments)} ended with {process.returncode}:\n{problem}")
    unit = 1 if sys.platform == "darwin" else 1024
    return Usage(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit, output)


def report(what: str, values: Sequence[float], unit: str) -> None:
    """Print a row: the median of some values and their range."""
    middle = statistics.median(values)
    spread = f"  ({min(values):,.2f} to {max(values):,.2f}, n={len(values)})" if len(values) > 1 else ""
    print(f"  {what:58} {middle:12,.2f} {unit}{spread}", flush=True)


def verdict(what: str, value: float, limit: float, unit: str) -> None:
    """Print a figure against its target."""
    word = "met" if value <= limit else "MISSED"
    print(f"  {what:58} {value:12,.2f} {unit}  target at most {limit:,.2f}: {word}", flush=True)


def heading(text: str) -> None:
    """Print the title of a part, with what the machine does beside it and how fast its disk makes writes durable."""
    load = f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    print(f"\n{text}\n  [{load}; fsync {1e3 * _fsync_s():.1f} ms in {tempfile.gettempdir()}]", flush=True)


def _fsync_s() -> float:
    """Median seconds of writing 4 kB durably: Dagster on SQLite does it several times for each event."""
    times = []
    with tempfile.TemporaryFile() as file:
        for _ in range(50):
            started = time.perf_counter()
            file.write(bytes(4_096))
            file.flush()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - started)
    return statistics.median(times)


def repetitions(count: int) -> Iterator[int]:
    """0 to count - 1, told on standard error."""
    for number in range(count):
        print(f"  repetition {number + 1} of {count}", file=sys.stderr, flush=True)
        yield number
