"""Whether tables and their indexes can be read from beginning to end, and whether damage is proven where not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctx_pipeline.index.folders import VERSIONS, files, holds_data, manifests
from ctx_pipeline.index.lance_errors import is_of_the_moment, lance_message
from ctx_pipeline.index.schemas import IDENTIFIERS
from ctx_pipeline.index.tables import Store

LANCE_MAGIC, ARROW_MAGIC = b"LANC", b"ARROW1"
"""Last bytes of a Lance file and of an Arrow file."""
HINT = "latest_version_hint.json"
SAMPLED_ROWS, SAMPLED_WORDS = 5, 10
"""How many rows of a table an index is asked for, and by how many words of each."""
_PLAIN_WORD = re.compile(r"(?<![^\W_])(?:[a-z]{6,20}|(?=[a-z]*[0-9])[a-z0-9]{4,20})(?![^\W_])")
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class TableProblem:
    """A table or an index that cannot be read."""

    table: str
    why: str
    is_proven: bool
    """Whether the files are damaged. Otherwise the machine refused to read them, and they may be as good as ever."""
    index: str = ""
    column: str = ""
    """The index that is concerned, and its column; empty for the table itself."""


def table_problems(store: Store) -> list[TableProblem]:
    """The tables that cannot be read, by name. Raises StorageError when the storage itself cannot be read now."""
    found = (table_problem(store, name) for name in sorted(store.folders()))
    return [problem for problem in found if problem]


def table_problem(store: Store, name: str) -> TableProblem | None:
    """What is wrong with one table; None for a sound one, and for what a kill leaves of one that was being made."""
    folder = store.uri / f"{name}.lance"
    try:
        hinted = _hinted_version(folder)  # before the listing: a commit meanwhile makes the hint older, never newer
        numbers = manifests(folder)
        if not numbers:
            return TableProblem(name, "its manifests are gone", True) if holds_data(folder) else None
    except OSError as error:
        return TableProblem(name, f"{error.strerror}: {error.filename}", False)
    problem = _judged(name, folder, lambda: read_all(open_afresh(store, name)))
    if problem is None and hinted > max(numbers):
        return TableProblem(name, f"the manifest of its newest version, {hinted}, is gone", True)
    return problem


def index_problems(store: Store, name: str) -> list[TableProblem]:
    """The indexes of a readable table that do not answer. Each is read whole, and asked a real query."""
    folder = store.uri / f"{name}.lance"
    table = open_afresh(store, name)
    found = []
    for index in table.list_indices():
        problem = _judged(name, folder, lambda index=index: _ask(open_afresh(store, name), index))  # type: ignore[misc]
        if problem:
            found.append(TableProblem(name, problem.why, problem.is_proven, index.name, index.columns[0]))
    return found


def open_afresh(store: Store, name: str, version: int | None = None) -> Any:
    """A table of a connection of its own, which has nothing in memory that the disk may have lost.

    Raises what LanceDB raises, ValueError for a manifest that LanceDB takes for a table of no columns.
    """
    import lancedb

    table = lancedb.connect(str(store.uri)).open_table(name, version=version)
    if not table.schema.names:
        raise ValueError("its newest manifest is empty")
    return table


def read_all(table: Any) -> None:
    """Read every row of a table, batch by batch."""
    for _ in table.search().to_batches():
        pass


def _ask(table: Any, index: Any) -> None:
    """Load an index whole, and send it queries made of words of its table's rows, which must find something."""
    table.prewarm_index(index.name)
    column = index.columns[0]
    if column == "vector":
        rows = table.search().select([column]).limit(1).to_arrow()[column].to_pylist()
        for vector in rows:
            query = table.search(vector, vector_column_name=column).distance_type("cosine").refine_factor(1)
            query.limit(1).to_arrow()
        return
    asked = _sample(table, column)
    unknown = [word for word in asked if not _finds(table, column, word)]
    # Stop words are in no index; few are as long as those of the sample.
    if len(unknown) > max(2, len(asked) // 4):
        counts = f"{len(unknown)} of {len(asked)} words that its rows hold"
        raise ValueError(f"{counts} are not found by it, such as {unknown[0]!r}")


def _sample(table: Any, column: str) -> list[str]:
    """Words of rows here and there in a table."""
    count = table.count_rows(f"{column} != ''")
    found = []
    for place in sorted({number * count // SAMPLED_ROWS for number in range(SAMPLED_ROWS)} if count else ()):
        query = table.search().where(f"{column} != ''").select([column]).offset(place).limit(1)
        for row in query.to_arrow().to_pylist():
            words = row[column].split() if column == IDENTIFIERS else _PLAIN_WORD.findall(row[column])
            different = sorted(set(words))
            found += different[:: len(different) // SAMPLED_WORDS + 1]
    return list(dict.fromkeys(found))


def _finds(table: Any, column: str, word: str) -> bool:
    from lancedb.query import MatchQuery

    query = table.search(MatchQuery(word, column)).select(["chunk_id", "_score"])
    return bool(query.limit(1).to_arrow().num_rows)


def _judged(name: str, folder: Path, read: Callable[[], None]) -> TableProblem | None:
    """Try to read; a failure is damage when it comes again although every file of the folder can be read."""
    try:
        read()
        return None
    except Exception as error:  # whatever the damage made of LanceDB
        if is_of_the_moment(error):
            return TableProblem(name, lance_message(error), False)
    try:
        broken = [path for path in files(folder) if _is_broken(path)]
    except OSError as error:
        return TableProblem(name, f"{error.strerror}: {error.filename}", False)
    try:
        read()  # files that an upkeep beside us removed meanwhile are no damage
        return None
    except Exception as error:  # whatever the damage made of LanceDB
        why = lance_message(error)
        if broken:
            why = f"{broken[0].relative_to(folder)} is no complete file of LanceDB ({why})"
        return TableProblem(name, why, not is_of_the_moment(error))


def _is_broken(path: Path) -> bool:
    """Whether a file lacks the end that all of its kind have. Reads it whole, so that the machine may refuse it."""
    end = b""
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                end = (end + block)[-8:]
    except FileNotFoundError:
        return False
    magic = {".lance": LANCE_MAGIC, ".manifest": LANCE_MAGIC, ".arrow": ARROW_MAGIC}.get(path.suffix)
    return magic is not None and not end.endswith(magic)


def _hinted_version(folder: Path) -> int:
    """The newest version that a writer noted down after its commit; 0 for unknown."""
    try:
        return int(json.loads((folder / VERSIONS / HINT).read_bytes())["version"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return 0
