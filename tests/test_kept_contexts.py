"""Which of several paid contexts a chunk keeps: the nearest, else the newest of the same model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctx_pipeline.contexts.model import Written
from tests.contexts_support import Desk, document, prose
from tests.emulators import faults
from tests.emulators.messages import MessagesEmulator

SECTIONS = 10
SONNET, HAIKU = "claude-sonnet-5-5", "claude-haiku-5-5"


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """Every answer is another one, so that it shows which is kept."""
    numbers = itertools.count(1)
    with MessagesEmulator(answer=lambda body: f"This is answer number {next(numbers)} about the quotas.") as api:
        yield Desk(tmp_path / "index", api, monkeypatch)


def edited(*changed: int) -> str:
    text = prose("quotas", SECTIONS)
    for section in changed:
        text = text.replace(f"quotas {section} 0 applies", f"quotas {section} 0 is void")
    return text


def write(desk: Desk, text: str, **options: object) -> Written:
    [result] = desk.write([document(text)], **options)
    return result


def texts(result: Written) -> list[str]:
    return [context.text for context in result.contexts]


@pytest.mark.parametrize(("now", "nearest"), [((9,), 0), ((1, 2, 3, 4, 5, 9), 1)])
@pytest.mark.parametrize("newest_first", [False, True])
def test_an_unchanged_chunk_keeps_the_context_of_the_version_that_differs_least(
    desk: Desk, now: tuple[int, ...], nearest: int, newest_first: bool
) -> None:
    versions = [edited(), edited(1, 2, 3, 4, 5)]
    order = (1, 0) if newest_first else (0, 1)
    written = {at: texts(write(desk, versions[at])) for at in order}
    assert written[0][7] != written[1][7]
    result = write(desk, edited(*now), reuse="chunk", reuse_max_drift=0.9)
    assert result.calls == 1, "the edited chunk alone"
    assert texts(result)[7] == written[nearest][7]
    assert result.contexts[7].reason.endswith("drift 0.10")


def test_a_nearer_version_by_another_model_lends_nothing(desk: Desk) -> None:
    far = texts(write(desk, edited(1, 2, 3), model=HAIKU))
    near = texts(write(desk, edited(), model=SONNET))
    result = write(desk, edited(9), model=HAIKU, reuse="chunk", reuse_max_drift=0.9)
    assert texts(result)[7] == far[7] != near[7]


def test_the_bound_of_the_drift_is_allowed_and_what_lies_above_is_asked_about(desk: Desk) -> None:
    write(desk, edited())
    assert write(desk, edited(1, 2), reuse="chunk", reuse_max_drift=0.2).calls == 2
    assert write(desk, edited(1, 2, 3, 4), reuse="chunk", reuse_max_drift=0.15).calls > 4


def without_key(desk: Desk, text: str, **options: object) -> Written:
    desk.key.delenv("ANTHROPIC_API_KEY")
    return write(desk, text, **options)


def test_a_chunk_that_cannot_be_asked_about_keeps_its_newest_context(desk: Desk) -> None:
    write(desk, edited())
    newest = texts(write(desk, edited(1)))
    kept = without_key(desk, edited(2))
    assert texts(kept)[7] == newest[7]
    assert [context.status for context in kept.contexts] == ["pending"] * SECTIONS
    assert kept.contexts[2].method == "outline", "nothing was ever written for the edited chunk"


def test_a_context_by_the_same_model_is_kept_before_a_newer_one_by_another(desk: Desk) -> None:
    own = texts(write(desk, edited(), model=HAIKU))
    write(desk, edited(), model=SONNET)
    assert texts(without_key(desk, edited(2), model=HAIKU))[7] == own[7]


def test_a_context_by_another_model_is_better_than_none(desk: Desk) -> None:
    other = texts(write(desk, edited(), model=SONNET))
    kept = without_key(desk, edited(2), model=HAIKU)
    assert texts(kept)[7] == other[7]
    assert (kept.contexts[7].status, kept.contexts[7].reason) == ("pending", "no_key")


def test_a_refused_chunk_falls_back_to_the_outline_and_keeps_no_older_context(desk: Desk) -> None:
    write(desk, edited())
    desk.api.faults = [(faults.always, faults.REFUSAL)]
    refused = write(desk, edited(2))
    assert {(context.status, context.method) for context in refused.contexts} == {("fallback", "outline")}
