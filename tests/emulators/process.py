"""The emulator in a process of its own, which outlives a client that is killed."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.emulators.bill import Bill


@dataclass(frozen=True)
class EmulatorProcess:
    """A running emulator."""

    url: str

    def bill(self) -> Bill:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{self.url}/emulator/bill") as answer:
            return Bill.from_json(json.load(answer))


@contextmanager
def emulator_process(*options: str) -> Iterator[EmulatorProcess]:
    """Start one with the options of its command line; it ends with the block, and with the process that runs it."""
    command = [sys.executable, "-m", "tests.emulators.messages", *options]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield EmulatorProcess(f"http://127.0.0.1:{int(process.stdout.readline())}")
