"""Mount points below the sources, remembered in the state table so that a missing volume is not taken for deletions."""

from __future__ import annotations

import json
from collections.abc import Mapping

from ctx_pipeline.index.tables import Store

ENTRY = "mounts:"
"""Begins the name of an entry; a source's name follows. The value is a JSON list of folders, named as doc_ids."""


def known_mounts(store: Store) -> dict[str, frozenset[str]]:
    """Mount points when last seen, by source."""
    state = store.state() if store.exists() else {}
    return {
        name.removeprefix(ENTRY): frozenset(json.loads(value))
        for name, value in state.items()
        if name.startswith(ENTRY)
    }


def differ(store: Store, mounts: Mapping[str, frozenset[str]]) -> bool:
    """Whether these are others than those that an index remembers of the same sources."""
    known = known_mounts(store)
    return store.exists() and any(known.get(source, frozenset()) != places for source, places in mounts.items())


def remember(store: Store, mounts: Mapping[str, frozenset[str]], *, forget: bool = True) -> None:
    """Store them, if they are others; the caller holds the lock. Without `forget` those known before stay."""
    known = known_mounts(store)
    wanted = {
        source: places if forget else places | known.get(source, frozenset()) for source, places in mounts.items()
    }
    changed = {source: places for source, places in wanted.items() if known.get(source, frozenset()) != places}
    if changed:
        store.set_state(**{ENTRY + source: json.dumps(sorted(places)) for source, places in changed.items()})
