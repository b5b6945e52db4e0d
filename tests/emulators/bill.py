"""What the emulator has seen and what it costs, with the assertions that catch wrong clients."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import Any

from tests.emulators.models import MODELS


@dataclass
class Entry:
    """One request. Times are seconds of the emulator's clock. What is billed is what the client has been told: a
    stream that breaks costs what `message_start` reported."""

    number: int
    status: int = 0
    reason: str = ""
    fault: str = ""
    model: str = ""
    view: str = ""
    rest: str = ""
    shape: str = ""
    view_tokens: int = 0
    crowded: bool = False
    marked: bool = False
    started_at: float = 0.0
    began_at: float | None = None
    complete: bool = False
    billed: bool = False
    usage: dict[str, Any] = field(default_factory=dict)

    @property
    def written(self) -> int:
        return int(self.usage.get("cache_creation_input_tokens", 0)) if self.billed else 0

    @property
    def usd(self) -> Decimal:
        return MODELS[self.model].usd(self.usage) if self.billed else Decimal(0)


@dataclass
class Bill:
    """All requests in the order of arrival."""

    entries: list[Entry] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0

    @property
    def usd(self) -> Decimal:
        return sum((entry.usd for entry in self.entries), Decimal(0))

    @property
    def answered(self) -> list[Entry]:
        """Requests with a complete answer that was billed."""
        return [entry for entry in self.entries if entry.complete and entry.billed]

    def total(self, name: str) -> int:
        """Billed tokens by the name that `usage` gives them."""
        return sum(entry.usage[name] for entry in self.entries if entry.billed)

    def views(self) -> dict[str, list[Entry]]:
        """The requests whose response began, by the view they were asked about."""
        found: dict[str, list[Entry]] = defaultdict(list)
        for entry in self.entries:
            if entry.began_at is not None:
                found[entry.view].append(entry)
        return dict(found)

    def assert_one_write_per_view(self) -> None:
        """Each view that was asked about more than once and is long enough was written to the cache once."""
        for view, entries in self._cacheable():
            writes = [entry.number for entry in entries if entry.written]
            assert len(writes) == 1, f"view {view}: written to the cache by requests {writes} of {len(entries)}"

    def assert_one_shape_per_view(self) -> None:
        """The requests of a view differ only behind it: same model, system text, thinking and output format."""
        for view, entries in self.views().items():
            shapes = {entry.shape for entry in entries}
            assert len(shapes) == 1, f"view {view}: {len(shapes)} request shapes, each with a cache entry of its own"

    def assert_views_marked(self) -> None:
        """Each view that was asked about more than once and is long enough carries a cache mark."""
        for view, entries in self._cacheable():
            unmarked = [entry.number for entry in entries if not entry.marked]
            assert not unmarked, f"view {view}: not marked for the cache in requests {unmarked}"

    def assert_first_call_alone(self) -> None:
        """No other request of a view arrived before the response that wrote it began."""
        for view, entries in self._cacheable():
            began = [entry.began_at for entry in entries if entry.began_at is not None]
            early = [entry.number for entry in entries[1:] if entry.started_at < min(began)]
            assert not early, f"view {view}: requests {early} did not wait for the first response to begin"

    def assert_disciplined(self) -> None:
        """All of the above."""
        self.assert_one_shape_per_view()
        self.assert_views_marked()
        self.assert_first_call_alone()
        self.assert_one_write_per_view()

    def _cacheable(self) -> Iterable[tuple[str, list[Entry]]]:
        for view, entries in self.views().items():
            if len(entries) > 1 and entries[0].view_tokens >= MODELS[entries[0].model].minimum:
                yield view, entries

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Bill:
        return cls(**{**values, "entries": [Entry(**entry) for entry in values["entries"]]})
