"""Filters: read whole or refused, values without SQL, LanceDB's reading of an expression against pyarrow's."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import lancedb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from ctx_pipeline.errors import QueryError
from ctx_pipeline.index import filters
from ctx_pipeline.index.filters import MAX_TOKENS_IN_A_ROW, Condition, Filters, read_filter
from ctx_pipeline.index.legs import Legs

NAMES = ["docs/a.md", "docs/legal/b_1.md", "docs/legal/bx1.md", "it's 50%", "a\\b*c\n", "", None, "OR 1=1 --"]
ROWS = pa.table(
    {
        "id": pa.array(range(len(NAMES)), pa.int64()),
        "chunk_id": [f"c{n}" for n in range(len(NAMES))],
        "name": NAMES,
        "start": pa.array([0, 10, 20, None, 40, 50, -5, 10], pa.int64()),
        "price": pa.array([1.5, 0.0, None, 2.0, -1.0, 3.0, 4.0, 5.0], pa.float64()),
        "ready": [True, False, None, True, False, True, None, False],
        "heading_path": pa.array(
            [["A", "B"], ["A"], [], None, ["it's"], ["B"], ["*"], ["a", "A"]], pa.list_(pa.string())
        ),
        "place": pa.array([{"page": n} for n in range(len(NAMES))]),
    }
)
ALL = set(range(len(NAMES)))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return lancedb.connect(tmp_path_factory.mktemp("filters")).create_table("t", ROWS)


def found(table: Any, where: str | None = None, values: Filters | None = None) -> set[int]:
    condition = read_filter(table, where, values)
    assert condition is not None
    return set(table.search().where(condition.sql).select(["id"]).limit(100).to_arrow()["id"].to_pylist())


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        ("name = 'docs/a.md'", {0}),
        ("name == 'docs/a.md'", {0}),
        ("name != 'docs/a.md'", ALL - {0, 6}),
        ("name <> 'docs/a.md'", ALL - {0, 6}),
        ("`name` = 'docs/a.md' OR \"name\" = ''", {0, 5}),
        ("NAME = 'docs/a.md'", {0}),
        ("name LIKE 'docs/legal/%'", {1, 2}),
        ("name ILIKE 'DOCS/%'", {0, 1, 2}),
        ("name NOT LIKE 'docs/%'", {3, 4, 5, 7}),
        ("name = 'it''s 50%'", {3}),
        ("name = 'OR 1=1 --'", {7}),
        ("name IN ('docs/a.md', 'it''s 50%')", {0, 3}),
        ("name IS NULL", {6}),
        ("start BETWEEN 0 AND 20 AND id > 0", {1, 2, 7}),
        ("NOT (start < 20)", {2, 4, 5}),
        ("start + 1 = 11 AND start % 3 = 1", {1, 7}),
        ("start = -5", {6}),
        ("price > 1.0 AND price < 2e0", {0}),
        ("ready", {0, 3, 5}),
        ("ready IS NOT FALSE", {0, 2, 3, 5, 6}),
        ("lower(name) = 'or 1=1 --'", {7}),
        ("starts_with(name, 'docs/')", {0, 1, 2}),
        ("regexp_like(name, '^docs/[^/]+$')", {0}),
        ("regexp_match(name, '^docs')", {0, 1, 2}),
        ("contains(name, '50%')", {3}),
        ("coalesce(name, 'none') = 'none'", {6}),
        ("cast(id as string) = '1'", {1}),
        ("id::bigint = 1", {1}),
        ("array_has(heading_path, 'A')", {0, 1, 7}),
        ("array_has_any(heading_path, ['a', 'it''s'])", {4, 7}),
        ("heading_path[1] = 'A'", {0, 1}),
        ("place.page = 3 OR place['page'] = 4", {3, 4}),
        ("name || '!' = '!'", {5}),
        ("  ((id = 1))\n ", {1}),
        ("id IN (1, 2) AND (name = 'x' OR start IS NOT NULL)", {1, 2}),
        ("date '2020-01-01' < now() AND id = 1", {1}),
        ("true", ALL),
    ],
)  # fmt: skip
def test_conditions_of_every_kind_are_read(table: Any, where: str, ids: set[int]) -> None:
    assert found(table, where) == ids


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("id = 1 garbage", "garbage follows on a condition that is complete without it"),
        ("id = 1 id = 2", "id follows"),
        ("id = 1 1", "1 follows"),
        ("id = 1 (2)", r"\( follows"),
        ("id = 1 LIMIT 1", "LIMIT follows"),
        ("id = 1 AS x", "AS follows"),
        ("id = 1;", "; follows"),
        ("id = 1; DROP TABLE t", "; follows"),
        ("id = 1 \\", "follows"),
        ("id = 1 \0", "follows"),
        ("id = 1 ＡＮＤ id = 2", "follows"),
        ("id = 1 -- AND start = 2", "the comment -- at character 8"),
        ("id = 1 /* AND start = 2 */", r"the comment /\* at character 8"),
        ("1=1) OR (1=1", r"\) at character 4 closes nothing"),
        ("1=1) garbage (1=1", r"\) at character 4 closes nothing"),
        ("1=1] garbage [1=1", r"\] at character 4 closes nothing"),
        ("id = 1)", r"\) at character 7 closes nothing"),
        ("(id = 1]", r"\] at character 8 closes nothing"),
        ("(id = 1", r"\( is not closed"),
        ("name = 'x", "the quote ' at character 8 is not closed"),
        ("name = 'a\\'b'", "is not closed"),
        ("id = 1, id = 2", "not supported"),
        ("id =", "not complete"),
        ("id = 1 AND", "not complete"),
        ("", "empty"),
        (" \n", "empty"),
        ("name = ?", "stands for no value"),
        ("name = $1", "stands for no value"),
        ("name = :x", "stands for no value"),
        ("name = N'x'", "stands for no value"),
        ("(SELECT true)", "not supported"),
        ("id", "boolean"),
        ("nonsense = 1", "the index has no column nonsense; its columns are id, chunk_id, name, start"),
        ("nonsense(id) = 1", "nonsense"),
        ("name = 1 AND start = 'x'", "check the filter"),
    ],
)
def test_what_is_no_whole_condition_is_refused(table: Any, where: str, said: str) -> None:
    with pytest.raises(QueryError, match=said) as raised:
        read_filter(table, where, None)
    assert repr(where) in str(raised.value)


@pytest.mark.parametrize(
    "where",
    ["+".join(["id"] * 1_000) + " > 0", "id" + "::bigint" * 1_000 + " = 1", "NOT " * 1_000 + "ready", "(" * 900],
)
def test_what_would_overflow_the_stack_of_lancedb_is_refused(table: Any, where: str) -> None:
    with pytest.raises(QueryError) as raised:
        read_filter(table, where, None)
    assert len(str(raised.value)) < 1_000


def test_long_lists_and_chains_are_read(table: Any) -> None:
    assert found(table, f"id IN ({', '.join(map(str, range(5_000)))})") == ALL
    assert found(table, " OR ".join(f"name = '{n}'" for n in range(2_000)) + " OR id = 3") == {3}
    assert found(table, " AND ".join(["id BETWEEN 1 AND 2"] * (MAX_TOKENS_IN_A_ROW // 5))) == {1, 2}


@pytest.mark.parametrize(
    ("values", "ids"),
    [
        ({"name": "docs/a.md"}, {0}),
        ({"name": "docs/legal/*"}, {1, 2}),
        ({"name": "docs/legal/b_*"}, {1}),
        ({"name": "*50%"}, {3}),
        ({"name": ["docs/a.md", "*legal*x1*"]}, {0, 2}),
        ({"name": "a\\*"}, {4}),
        ({"name": "*"}, ALL - {6}),
        ({"name": ""}, {5}),
        ({"name": None}, {6}),
        ({"name": [None, "docs/a.md"]}, {0, 6}),
        ({"name": []}, set()),
        ({"name": "' OR 1=1 --"}, set()),
        ({"name": "OR 1=1 --"}, {7}),
        ({"start": 10}, {1, 7}),
        ({"start": 10.0, "id": 7}, {7}),
        ({"price": 2}, {3}),
        ({"price": [1.5, -1.0]}, {0, 4}),
        ({"ready": True}, {0, 3, 5}),
        ({"ready": [False, None]}, {1, 2, 4, 6, 7}),
        ({"heading_path": "A"}, {0, 1, 7}),
        ({"heading_path": "it's"}, {4}),
        ({"heading_path": "*"}, {6}),
        ({"heading_path": ("B", "*")}, {0, 5, 6}),
        ({}, ALL),
    ],
)  # fmt: skip
def test_values_are_asked_for_without_sql(table: Any, values: Filters, ids: set[int]) -> None:
    assert found(table, None, values) == ids


def test_values_and_sql_must_both_hold(table: Any) -> None:
    assert found(table, "id = 1 OR id = 2 OR id = 3", {"name": "docs/*"}) == {1, 2}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"nonsense": 1}, "no column 'nonsense'; its columns are id, chunk_id, name.*front matter is in metadata"),
        ({"id = 1 OR name": "x"}, "no column"),
        ({"place": 1}, "place holds struct"),
        ({"start": "10"}, "start holds int64, which '10' is not"),
        ({"start": True}, "start holds int64, which True is not"),
        ({"start": 1.5}, "start holds int64"),
        ({"start": 10**30}, "start holds int64"),
        ({"price": float("nan")}, "price holds double"),
        ({"price": float("inf")}, "price holds double"),
        ({"name": 1}, "name holds string, which 1 is not"),
        ({"ready": 1}, "ready holds bool"),
        ({"name": {"x": 1}}, "not a text, number, bool, None or a list"),
        ({"name": [["x"]]}, "name holds string"),
    ],
)
def test_values_that_a_column_cannot_have_are_refused(table: Any, values: Any, said: str) -> None:
    with pytest.raises(QueryError, match=said):
        read_filter(table, None, values)


HOSTILE = st.text(st.sampled_from(list("ab'\"`\\%_*\n();-$?é\0")), max_size=8)


@given(st.lists(HOSTILE, min_size=1, max_size=6, unique=True), HOSTILE)
@hypothesis_settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_values_are_data_whatever_they_hold(tmp_path_factory: Any, stored: list[str], pattern: str) -> None:
    rows = pa.table({"id": range(len(stored)), "name": stored})
    own = lancedb.connect(tmp_path_factory.mktemp("hostile")).create_table("t", rows)
    for at, value in enumerate(stored):
        if "*" not in value:
            assert found(own, None, {"name": value}) == {at}
    glob = re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)
    assert found(own, None, {"name": pattern}) == {at for at, value in enumerate(stored) if glob.fullmatch(value)}


# Random conditions: the SQL, and what pyarrow makes of the same --------------------------------------------------

Expected = tuple[str, pa.ChunkedArray]


def _compared(column: str, operator: str, value: Any) -> Expected:
    compute = {
        "=": pc.equal,
        "!=": pc.not_equal,
        "<": pc.less,
        ">=": pc.greater_equal,
    }
    literal = "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)
    return f"{column} {operator} {literal}", compute[operator](ROWS[column], value)


def _one_of(values: list[int]) -> Expected:
    # Of a column without empty values: LanceDB takes `x IN (1) AND x IN (2)` for false where x is empty.
    return f"id IN ({', '.join(map(str, values))})", pc.is_in(ROWS["id"], value_set=pa.array(values, pa.int64()))


NUMBERS, WORDS = st.sampled_from([-5, 0, 1, 10, 20, 40]), st.sampled_from(["docs/a.md", "it's 50%", "", "b", "OR"])
SIMPLE: st.SearchStrategy[Expected] = st.one_of(
    st.builds(_compared, st.sampled_from(["id", "start"]), st.sampled_from(["=", "!=", "<", ">="]), NUMBERS),
    st.builds(_compared, st.just("name"), st.sampled_from(["=", "!=", "<", ">="]), WORDS),
    st.builds(_one_of, st.lists(NUMBERS, min_size=1, max_size=3)),
    st.sampled_from(["name", "start", "ready"]).map(lambda column: (f"{column} IS NULL", pc.is_null(ROWS[column]))),
    st.just(("ready", ROWS["ready"])),
    st.just(("name LIKE 'docs/%'", pc.starts_with(ROWS["name"], "docs/"))),
)


def _both(pair: tuple[Expected, Expected]) -> Expected:
    (left, holds_left), (right, holds_right) = pair
    return f"({left}) AND ({right})", pc.and_kleene(holds_left, holds_right)


def _either(pair: tuple[Expected, Expected]) -> Expected:
    (left, holds_left), (right, holds_right) = pair
    return f"({left}) OR ({right})", pc.or_kleene(holds_left, holds_right)


CONDITIONS: st.SearchStrategy[Expected] = st.recursive(
    SIMPLE,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(_both),
        st.tuples(inner, inner).map(_either),
        inner.map(lambda one: (f"NOT ({one[0]})", pc.invert(one[1]))),
    ),
    max_leaves=6,
)


def _rows(holds: pa.ChunkedArray) -> set[int]:
    return set(ROWS.filter(holds)["id"].to_pylist())


@given(CONDITIONS)
@hypothesis_settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_condition_means_what_it_says(table: Any, condition: Expected) -> None:
    assert found(table, condition[0]) == _rows(condition[1])


SCRAPS = [")", "(", "[", "]", ";", "--", "/*", "*/", "x", "'", '"', "`", ",", "AND", "1", "=", "1=1", "IS", "@"]
LEFT_OVER = st.lists(st.sampled_from(SCRAPS), min_size=1, max_size=5).map(" ".join)


@given(CONDITIONS, LEFT_OVER, st.booleans())
@hypothesis_settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_stands_behind_a_condition_never_widens_it(
    table: Any, condition: Expected, left_over: str, in_front: bool
) -> None:
    where = f"({condition[0]}) {left_over}"
    if in_front:
        where = f"1=1) OR ({where}"
    try:
        ids = found(table, where)
    except QueryError:
        return
    assert ids <= _rows(condition[1])


# The time limit --------------------------------------------------------------------------------------------------


class Stuck:
    """A table in which the planning of a filter never ends by itself."""

    schema = ROWS.schema

    def __init__(self) -> None:
        self.released = threading.Event()

    def search(self) -> Stuck:
        return self

    def where(self, sql: str) -> Stuck:
        return self

    def limit(self, rows: int) -> Stuck:
        return self

    def explain_plan(self) -> str:
        self.released.wait()
        return ""


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    table = Stuck()
    yield table
    table.released.set()


def test_a_filter_whose_planning_does_not_end_is_given_up(stuck: Stuck, monkeypatch: pytest.MonkeyPatch) -> None:
    assert filters.FILTER_SECONDS == 10
    monkeypatch.setattr(filters, "FILTER_SECONDS", 0.01)
    with pytest.raises(QueryError, match=r"given up after 0.01 s; a simpler filter than 'id = 1'"):
        read_filter(stuck, "id = 1", None)


def test_a_search_that_has_used_its_time_up_is_given_up(table: Any) -> None:
    table.create_fts_index("name", replace=True)
    slow = "levenshtein(repeat(name, 20000), repeat(name, 20000)) >= 0"
    for seconds in (0.0, 0.05):
        with pytest.raises(QueryError, match="given up after 10 s"):
            Legs(table, 5, Condition(slow, slow, seconds))._text("docs", "name")
    assert Legs(table, 5, None)._text("docs", "name")
    assert Legs(table, 5, Condition("id < 2", "id < 2", 60.0))._text("docs", "name") == ["c0", "c1"]
