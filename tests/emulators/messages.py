"""A loopback emulator of the Claude Messages API: `with MessagesEmulator() as api: ... api.url ... api.bill`.

`python -m tests.emulators.messages` runs one as a process of its own that ends with its standard input; it prints its
port, and `GET /emulator/bill` tells what it has seen. Responses name the model `emulator`, so that nothing they say can
pass for the work of a model; they are billed as the model that was asked.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from tests.emulators import faults
from tests.emulators.answer import digest_object, digests
from tests.emulators.bill import Bill, Entry
from tests.emulators.faults import Call, Fault, When
from tests.emulators.handler import Handler, Server
from tests.emulators.prompt import sha
from tests.emulators.prompt_cache import PromptCache
from tests.emulators.rate_limits import RateLimits

KEY = "sk-ant-emulator"


class MessagesEmulator:
    """`faults` are tried in order, and the first whose condition holds happens. `limits` are amounts per minute of
    `requests`, `input-tokens`, `output-tokens`; more than `max_in_flight` requests at once are answered 529.
    Latency: `first_token_s` until the response begins, then `per_token_s` for each token. `clock` (seconds) governs
    cache lifetimes and limits."""

    def __init__(
        self,
        *,
        answer: Callable[[dict[str, Any]], str] = digests,
        structured: Callable[[dict[str, Any]], Any] = digest_object,
        faults: Sequence[tuple[When, Fault]] = (),
        limits: dict[str, int] | None = None,
        max_in_flight: int = 1_000_000,
        first_token_s: float = 0.0,
        per_token_s: float = 0.0,
        key: str = KEY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.answer, self.structured, self.faults = answer, structured, list(faults)
        self.max_in_flight = max_in_flight
        self.first_token_s, self.per_token_s = first_token_s, per_token_s
        self.key, self.clock = key, clock
        self.bill = Bill()
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.defects: list[str] = []
        self.lock = threading.RLock()
        self.closing = threading.Event()
        self.cache = PromptCache(clock)
        self.limits = RateLimits(limits or {}, clock)
        self._asks: Counter[str] = Counter()
        self._open: set[int] = set()
        self._server: Server | None = None

    @property
    def url(self) -> str:
        assert self._server is not None, "the emulator is not started"
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.emulator = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        assert not self.defects, f"the emulator itself failed: {self.defects[0]}"

    @contextmanager
    def entry(self) -> Iterator[Entry]:
        """A new request on the bill, in flight until the end of the block."""
        with self.lock:
            entry = Entry(len(self.bill.entries) + 1, started_at=self.clock())
            self.bill.entries.append(entry)
            self._open.add(entry.number)
            self.bill.in_flight = len(self._open)
            self.bill.most_in_flight = max(self.bill.most_in_flight, self.bill.in_flight)
            entry.crowded = self.bill.in_flight > self.max_in_flight
        try:
            yield entry
        finally:
            self.leave(entry)

    def leave(self, entry: Entry) -> None:
        """No longer in flight: before the last bytes, as the client may send its next request when it has them."""
        with self.lock:
            self._open.discard(entry.number)
            self.bill.in_flight = len(self._open)

    def fault_for(self, body: dict[str, Any], number: int) -> Fault | None:
        digest = sha(body)
        with self.lock:
            self._asks[digest] += 1
            call = Call(number, self._asks[digest], body, digest)
            return next((fault for when, fault in self.faults if when(call)), None)


def _named(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def main() -> None:
    """Faults are given as `529:0.1`: what, and the share of requests."""
    parser = argparse.ArgumentParser(description="Emulate the Claude Messages API until standard input ends.")
    parser.add_argument("--answer", type=_named, default=digests, metavar="MODULE:FUNCTION")
    parser.add_argument("--structured", type=_named, default=digest_object, metavar="MODULE:FUNCTION")
    parser.add_argument("--fault", action="append", default=[], metavar="NAME:SHARE")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-in-flight", type=int, default=1_000_000)
    parser.add_argument("--first-token-s", type=float, default=0.0)
    parser.add_argument("--per-token-s", type=float, default=0.0)
    options = vars(parser.parse_args())
    seed = options.pop("seed")
    rules = []
    for number, rule in enumerate(options.pop("fault")):
        name, _, part = rule.partition(":")
        rules.append((faults.share(float(part), seed + number), faults.named(name)))
    with MessagesEmulator(faults=rules, **options) as emulator:
        print(emulator.url.rpartition(":")[2], flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
