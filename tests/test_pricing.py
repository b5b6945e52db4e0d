"""Prices and usage: the published examples to the cent, the price step, and files of one's own prices."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from ctx_pipeline.claude.pricing import SETTINGS_KEY, Prices
from ctx_pipeline.claude.usage import Usage
from ctx_pipeline.errors import SettingsError

HAIKU = "claude-haiku-5-5"
HAIKU_3_OF_2024 = """
checked = "2024-09"
[models.claude-3-haiku]
input = 0.25
output = 1.25
cache_write_5m = 0.30
cache_write_1h = 0.50
cache_read = 0.03
batch_factor = 0.5
min_cacheable_tokens = 2048
context_window_tokens = 200_000
"""

# Documents of 8,000 tokens, chunks of 800, instructions of 50, contexts of 100 tokens; a million document tokens.
DOCUMENTS, CHUNKS_EACH, DOCUMENT, ASKED, CONTEXT = 125, 10, 8_000, 850, 100


@pytest.fixture(scope="module")
def prices() -> Prices:
    return Prices.load()


def own(folder: Path, text: str) -> Path:
    path = folder / "prices.toml"
    path.write_text(text)
    return path


def test_a_million_tokens_with_caching_costs_the_published_figure(prices: Prices) -> None:
    first = prices.cost(Usage(input=ASKED, cache_write_5m=DOCUMENT, output=CONTEXT), HAIKU)
    other = prices.cost(Usage(input=ASKED, cache_read=DOCUMENT, output=CONTEXT), HAIKU)
    assert DOCUMENTS * (first + (CHUNKS_EACH - 1) * other) == Decimal("0.38375")


def test_a_million_tokens_without_caching_costs_three_times_as_much(prices: Prices) -> None:
    each = prices.cost(Usage(input=DOCUMENT + ASKED, output=CONTEXT), HAIKU)
    assert DOCUMENTS * CHUNKS_EACH * each == Decimal("1.16875")


def test_the_figure_of_2024_comes_out_of_its_prices(tmp_path: Path) -> None:
    prices = Prices.load(own(tmp_path, HAIKU_3_OF_2024))
    write = prices.cost(Usage(cache_write_5m=DOCUMENT), "claude-3-haiku")
    each = prices.cost(Usage(input=ASKED, cache_read=DOCUMENT, output=CONTEXT), "claude-3-haiku")
    assert round(DOCUMENTS * (write + CHUNKS_EACH * each), 2) == Decimal("1.02")


def test_sums_of_small_costs_are_exact(prices: Prices) -> None:
    costs = [prices.cost(Usage(input=3, cache_read=7), HAIKU)] * 1_000
    assert sum(costs) == Decimal("0.00037")


@pytest.mark.parametrize(
    ("usage", "usd"),
    [
        (Usage(input=100_000), "0.01"),
        (Usage(input=100_001), "0.0500005"),
        (Usage(cache_read=100_000, output=1_000), "0.0015"),
        (Usage(cache_read=100_000, input=1, output=1_000), "0.0075005"),
        (Usage(cache_write_1h=60_000, cache_write_5m=40_001), "0.085000625"),
    ],
    ids=["at the step", "above it", "reads at the step", "reads above it", "writes above it"],
)
def test_a_prompt_above_the_step_costs_more_for_all_its_tokens(prices: Prices, usage: Usage, usd: str) -> None:
    assert prices.cost(usage, HAIKU) == Decimal(usd)


def test_a_batch_costs_half_of_every_kind_of_token(prices: Prices) -> None:
    usage = Usage(1_000, 2_000, 3_000, 4_000, 500)
    assert prices.cost(usage, HAIKU, batch=True) * 2 == prices.cost(usage, HAIKU)


@pytest.mark.parametrize(
    ("usage", "usd"),
    [
        (Usage(input=1_000), "0.001"),
        (Usage(cache_write_5m=1_000), "0.00125"),
        (Usage(cache_write_1h=1_000), "0.002"),
        (Usage(cache_read=1_000), "0.0001"),
        (Usage(output=1_000), "0.005"),
    ],
)
def test_each_kind_of_token_has_its_price(prices: Prices, usage: Usage, usd: str) -> None:
    assert prices.cost(usage, "claude-haiku-4-5") == Decimal(usd)


@pytest.mark.parametrize("name", ["claude-haiku-4-5-20251001", "claude-haiku-4-5-latest", "claude-haiku-4-5"])
def test_a_dated_snapshot_has_the_prices_of_its_model(prices: Prices, name: str) -> None:
    assert prices.model(name) is prices.models["claude-haiku-4-5"]
    assert prices.model(name).min_cacheable_tokens == 4096


@pytest.mark.parametrize("name", ["claude-haiku-9", "claude-haiku-4", "claude-haiku-4-5-2025", "emulator", ""])
def test_an_unknown_model_names_the_known_ones_and_the_setting(prices: Prices, name: str) -> None:
    with pytest.raises(SettingsError) as caught:
        prices.cost(Usage(input=1), name)
    assert repr(name) in str(caught.value)
    assert all(known in str(caught.value) for known in prices.models)
    assert SETTINGS_KEY in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("input = 0.25", "input = -1"), "models.claude-3-haiku.input"),
        (("input = 0.25", "input = nan"), "models.claude-3-haiku.input"),
        (("input = 0.25\n", ""), "models.claude-3-haiku.input: Field required"),
        (("batch_factor", "batch_faktor"), "models.claude-3-haiku.batch_factor"),
        (("output = 1.25", "output = 1.25\nstep_tokens = 5"), "step_tokens and above_step belong together"),
        (("checked", "checked = ="), "cannot be read as TOML"),
    ],
)
def test_a_wrong_file_of_prices_is_named_with_its_key(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    path = own(tmp_path, HAIKU_3_OF_2024.replace(*change))
    with pytest.raises(SettingsError, match=str(path)) as caught:
        Prices.load(path)
    assert said in str(caught.value)


def test_a_missing_file_of_prices_is_a_settings_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="absent"):
        Prices.load(tmp_path / "absent.toml")


def test_null_and_missing_usage_fields_count_as_nothing() -> None:
    told = {"input_tokens": 7, "output_tokens": 3, "cache_creation": None, "cache_read_input_tokens": None}
    assert Usage.from_response(told) == Usage(input=7, output=3)


def test_cache_writes_are_split_by_lifetime() -> None:
    lifetimes = {"ephemeral_5m_input_tokens": 20, "ephemeral_1h_input_tokens": 30}
    told = {"input_tokens": 1, "cache_creation_input_tokens": 50, "cache_creation": lifetimes, "output_tokens": 2}
    assert Usage.from_response(told) == Usage(input=1, cache_write_5m=20, cache_write_1h=30, output=2)
    assert Usage.from_response({"cache_creation_input_tokens": 50}) == Usage(cache_write_5m=50)


def test_usages_add_up_and_the_hit_rate_weighs_tokens() -> None:
    first = Usage(input=100, cache_write_5m=900)
    total = first + Usage(input=100, cache_read=900, output=5) + Usage(cache_write_1h=50)
    assert total == Usage(200, 900, 50, 900, 5)
    assert total.total_input == 2050
    assert total.cache_hit_rate == pytest.approx(900 / 2050)
    assert first.cache_hit_rate == 0.0
    assert Usage(output=5).cache_hit_rate == 0.0
