"""Settings: every mistake is one line that says where, which key, and what is allowed; nothing is taken silently."""

from __future__ import annotations

import itertools
import subprocess
import sys
import warnings
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest
from dagster._utils.schedules import schedule_execution_time_iterator  # what the daemon calls; nothing public does
from hypothesis import given, settings
from hypothesis import strategies as st

from ctx_pipeline.errors import SettingsError
from ctx_pipeline.settings import ScheduleSettings, Settings
from ctx_pipeline.settings_file import load_settings, settings_file

SECRET = "sk-do-not-show-4711"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Holds ctx.toml; the working directory is another folder."""
    path = tmp_path / "configured"
    path.mkdir()
    return path


def load(folder: Path, text: str = "", **environ: str) -> Settings:
    (folder / "ctx.toml").write_text(text, encoding="utf-8")
    return load_settings({"CTX_CONFIG": str(folder / "ctx.toml"), **environ})


def refusal(folder: Path, text: str = "", **environ: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load(folder, text, **environ)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


def source(lines: str) -> str:
    return f'[[source]]\nname = "docs"\npath = "docs"\n{lines}'


@pytest.mark.parametrize(
    ("text", "key", "allowed"),
    [
        # keys and sections
        ("[stroage]\nuri = 'x'", "stroage", "storage"),
        ("[storage]\nurl = 'x'", "storage.url", "uri"),
        (source("exlude = ['x']"), "source[0].exlude", "exclude, gitignore, include, max_bytes, name, path"),
        ("[[source]]\nnam = 'docs'\npath = 'x'", "source[0].nam", "name"),
        ("[[source]]\nname = 'docs'", "source[0].path", "required"),
        ('["a\\nb"]\nc = 1', "a b", "unknown key"),
        # shapes
        ("[source]\nname = 'docs'\npath = 'x'", "source", "[[source]]"),
        ("storage = 'x'", "storage", "table with keys of retention, uri"),
        ("[[storage]]\nuri = 'x'", "storage", "table with keys of retention, uri"),
        (source("include = '*.md'"), "source[0].include", "list"),
        (source("include = [1]"), "source[0].include[0]", "string"),
        # types: nothing is turned into something else
        ("[chunking]\nmax_tokens = '512'", "chunking.max_tokens", "integer"),
        ("[chunking]\nmax_tokens = 512.0", "chunking.max_tokens", "integer"),
        ("[search]\nrrf_k = true", "search.rrf_k", "integer"),
        ("[search]\nweights = 3", "search.weights", "table with keys of document, identifiers, keyword, vector"),
        ("[search.weights]\nvectors = 1", "search.weights.vectors", "document, identifiers, keyword, vector"),
        ("[search.weights]\nkeyword = -1", "search.weights.keyword", "greater than or equal to 0"),
        ("[search.weights]\nvector = 0\nkeyword = 0", "search.weights", "must not both be 0"),
        ("[safety]\nmax_delete_share = true", "safety.max_delete_share", "number"),
        ("[embedding]\nmodel = 3", "embedding.model", "string"),
        (f"[embedding]\napi_key = ['{SECRET}']", "embedding.api_key", "string"),
        # values
        ("[chunking]\nmax_tokens = 31", "chunking.max_tokens", "greater than or equal to 32"),
        ("[chunking]\nmax_tokens = 8193", "chunking.max_tokens", "less than or equal to 8192"),
        ("[chunking]\nstrategy = 'magic'", "chunking.strategy", "'recursive', 'fixed', 'structure' or 'semantic'"),
        ("[chunking]\noverlap = 256", "chunking.overlap", "less than half of chunking.max_tokens (512), got 256"),
        ("[chunking]\nmax_tokens = 64\noverlap = 32", "chunking.overlap", "chunking.max_tokens (64), got 32"),
        ("[chunking]\nstrategy = 'semantic'\noverlap = 9", "chunking.overlap", "'recursive', 'fixed' and 'structure'"),
        ("[chunking]\nsemantic_percentile = 100", "chunking.semantic_percentile", "less than or equal to 99"),
        (
            "[contexts]\nmethod = 'magic'",
            "contexts.method",
            "'outline', 'claude', 'openai', 'summary', 'auto' or 'none'",
        ),
        ("[contexts]\nmethod = 'openai'", "contexts", "needs base_url"),
        ("[contexts]\nmethod = 'openai'\nmodel = 'm'\nbase_url = 'localhost'", "contexts.base_url", "http://"),
        ("[contexts]\nmodel = ' '", "contexts.model", "pattern"),
        ("[contexts]\nwindow_tokens = 999", "contexts.window_tokens", "greater than or equal to 1000"),
        ("[contexts]\nmax_usd = -1.0", "contexts.max_usd", "greater than or equal to 0"),
        ("[contexts]\nreuse_max_drift = 1.5", "contexts.reuse_max_drift", "less than or equal to 1"),
        ("[contexts]\nreuse = 'always'", "contexts.reuse", "'exact' or 'chunk'"),
        ("[contexts.glossary]\nSLA = ' '", "contexts.glossary", "SLA"),
        ("[contexts]\nmethod = 'summary'\nchunks_per_call = 5", "contexts", "chunks_per_call"),
        (f"[contexts]\nmethod = 'claude'\napi_key = '{SECRET}'", "contexts", "ANTHROPIC_API_KEY"),
        ("[contexts]\nrule = 'x'", "contexts.rule", "[[contexts.rule]]"),
        ("[[contexts.rule]]\nglob = '*'", "contexts.rule[0].method", "required"),
        ("[[contexts.rule]]\nglobs = '*'\nmethod = 'none'", "contexts.rule[0].globs", "glob, method"),
        ("[[contexts.rule]]\nglob = '[z-a]'\nmethod = 'none'", "contexts.rule[0].glob", "pattern as in .gitignore"),
        ("[[contexts.rule]]\nglob = '*'\nmethod = 'claude'", "contexts", "use outline, none, or contexts.method"),
        ("[storage]\nretention = -1", "storage.retention", "greater than or equal to 0"),
        ("[storage]\nretention = 99999999999999999999", "storage.retention", "less than or equal to"),
        ("[safety]\nmax_delete_share = 1.5", "safety.max_delete_share", "less than or equal to 1"),
        ("[safety]\nmax_delete_share = nan", "safety.max_delete_share", "1"),
        ("[search]\nlanguages = ['Klingon']", "search.languages", "Spanish"),
        ("[search]\nlanguages = []", "search.languages", "at least one"),
        ("[search]\nlanguages = ['Greek', 'Greek']", "search.languages", "none twice"),
        ("[search]\ncandidates = 0", "search.candidates", "greater than or equal to 1"),
        ("[search]\nrerank = 'magic'", "search.rerank", "'none', 'claude', 'voyage', 'cohere' or 'cross-encoder'"),
        ("[search]\nrerank_model = ''", "search.rerank_model", "at least 1 character"),
        ("[search]\nrerank_base_url = 'localhost'", "search.rerank_base_url", "http://"),
        ("[search]\nrerank_max_usd = -0.1", "search.rerank_max_usd", "greater than or equal to 0"),
        ("[search]\nrerank_max_usd = inf", "search.rerank_max_usd", "finite"),
        ("[embedding]\nmodel = 'Voyage-4'", "embedding.model", "voyage-..."),
        ("[embedding]\nmodel = 'bge-m3'", "embedding.model", "multilingual-e5-small, hashing"),
        ("[embedding]\nbase_url = 'localhost:8080'\nmodel = 'm'", "embedding.base_url", "http://"),
        ("[embedding]\nbase_url = ''", "embedding.base_url", "http://"),
        ("[embedding]\nwindow_tokens = 255", "embedding.window_tokens", "greater than or equal to 256"),
        ("[schedule]\ntimezone = 'Mars/Olympus'", "schedule.timezone", "Europe/Madrid"),
        ("[schedule]\ntimezone = 'Europe'", "schedule.timezone", "Europe/Madrid"),
        ("[schedule]\ntimezone = '../../etc/hosts'", "schedule.timezone", "Europe/Madrid"),
        ("[dagster]\npartitions = 'my docs'", "dagster.partitions", "pattern"),
        ("[[source]]\nname = 'a/b'\npath = 'x'", "source[0].name", "pattern"),
        (source("max_bytes = 0"), "source[0].max_bytes", "greater than or equal to 1"),
        (source("exclude = ['ok', '!']"), "source[0].exclude", "pattern as in .gitignore"),
        (source("exclude = ['[z-a]']"), "source[0].exclude", "pattern as in .gitignore"),
        ("[[source]]\nname = 'docs'\npath = ''", "source[0].path", "must name a folder"),
        ('[[source]]\nname = "docs"\npath = "a\\u0000b"', "source[0].path", "must name a folder"),
        ("[storage]\nuri = 's3://bucket/index'", "storage.uri", "only local folders"),
        ("[storage]\nuri = '~no-such-user/index'", "storage.uri", "~no-such-user"),
    ],
)
def test_a_mistake_in_the_file_names_the_file_the_key_and_what_is_allowed(
    folder: Path, text: str, key: str, allowed: str
) -> None:
    message = refusal(folder, text)
    assert message.startswith(f"{folder / 'ctx.toml'}: {key}")
    assert allowed in message
    assert SECRET not in message


def test_two_sources_of_one_name_are_refused(folder: Path) -> None:
    message = refusal(folder, source("") + source("").replace('path = "docs"', 'path = "more"'))
    assert message.startswith(f"{folder / 'ctx.toml'}: ")
    assert "'docs'" in message
    assert "once" in message


def test_the_misspelt_key_is_named_before_the_one_that_it_leaves_missing(folder: Path) -> None:
    message = refusal(folder, "[[source]]\nname = 'docs'\npth = 'x'")
    assert "source[0].pth: unknown key" in message
    assert message.endswith("(and 1 more)")


@pytest.mark.parametrize(
    "text", ["[storage", "uri = x", "a = 1\na = 2", "[storage]\n[storage]", f'api_key = "{SECRET}', "a = " + "[" * 5000]
)
def test_text_that_is_not_toml_is_one_line(folder: Path, text: str) -> None:
    message = refusal(folder, text)
    assert message.startswith(f"{folder / 'ctx.toml'}: not valid TOML: ")
    assert SECRET not in message


def test_a_file_that_is_not_utf8_is_one_line(folder: Path) -> None:
    (folder / "ctx.toml").write_bytes(b"# caf\xe9\n")
    with pytest.raises(SettingsError, match="cannot be read as UTF-8"):
        load_settings({"CTX_CONFIG": str(folder / "ctx.toml")})


def test_a_folder_in_place_of_the_file_is_one_line(folder: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        load_settings({"CTX_CONFIG": str(folder)})


def test_a_byte_order_mark_before_the_settings_is_ignored(folder: Path) -> None:
    (folder / "ctx.toml").write_bytes(b"\xef\xbb\xbf[search]\nrrf_k = 7\n")
    assert load_settings({"CTX_CONFIG": str(folder / "ctx.toml")}).search.rrf_k == 7


def test_the_file_that_ctx_config_names_must_exist(tmp_path: Path) -> None:
    missing = tmp_path / "none.toml"
    with pytest.raises(SettingsError, match="no such file") as caught:
        load_settings({"CTX_CONFIG": str(missing)})
    assert str(missing) in str(caught.value)
    assert "CTX_CONFIG" in str(caught.value)


def test_without_any_file_the_defaults_hold() -> None:
    assert load_settings({}).model_dump(exclude={"storage"}) == Settings().model_dump(exclude={"storage"})
    assert load_settings({}).storage.uri == Path.cwd() / ".ctx/index"
    assert settings_file({"CTX_CONFIG": ""}) == Path.cwd() / "ctx.toml"


def test_ctx_toml_of_the_working_directory_is_read() -> None:
    Path("ctx.toml").write_text("[search]\nrrf_k = 7\n")
    assert load_settings({}).search.rrf_k == 7


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CTX_SEARCH__RRF_K", "9")
    assert load_settings().search.rrf_k == 9


# Environment -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "raw", "section", "key", "value"),
    [
        ("CTX_CHUNKING__MAX_TOKENS", "64", "chunking", "max_tokens", 64),
        ("CTX_SAFETY__MAX_DELETE_SHARE", "0.5", "safety", "max_delete_share", 0.5),
        ("CTX_SEARCH__LANGUAGES", '["Greek", "English"]', "search", "languages", ("Greek", "English")),
        ("CTX_SCHEDULE__CRON", "5 4 * * *", "schedule", "cron", "5 4 * * *"),
        ("CTX_SCHEDULE__TIMEZONE", "Europe/Madrid", "schedule", "timezone", "Europe/Madrid"),
        ("CTX_CONTEXTS__METHOD", "none", "contexts", "method", "none"),
        ("CTX_DAGSTER__PARTITIONS", "2026", "dagster", "partitions", "2026"),
        ("CTX_EMBEDDING__MODEL", "hashing", "embedding", "model", "hashing"),
        ("ctx_search__rrf_k".upper(), " 7 ", "search", "rrf_k", 7),
    ],
)
def test_a_variable_overrides_the_file(
    folder: Path, variable: str, raw: str, section: str, key: str, value: object
) -> None:
    text = "[chunking]\nmax_tokens = 100\n[search]\nlanguages = ['Dutch']\nrrf_k = 1\n[schedule]\ncron = '0 0 * * *'\n"
    settings = load(folder, text, **{variable: raw})
    assert getattr(getattr(settings, section), key) == value


def test_text_that_looks_like_a_number_stays_text(folder: Path) -> None:
    settings = load(
        folder,
        CTX_EMBEDDING__BASE_URL="http://localhost:1",
        CTX_EMBEDDING__MODEL="123",
        CTX_EMBEDDING__API_KEY="456",
        CTX_EMBEDDING__PATH="789",
    )
    assert settings.embedding.model == "123"
    assert settings.embedding.api_key is not None
    assert settings.embedding.api_key.get_secret_value() == "456"
    assert settings.embedding.path == Path.cwd() / "789"


def test_a_variable_of_one_section_leaves_the_others_of_the_file(folder: Path) -> None:
    settings = load(folder, "[search]\nrrf_k = 7\ncandidates = 20", CTX_SEARCH__RRF_K="8")
    assert (settings.search.rrf_k, settings.search.candidates) == (8, 20)


def test_inline_tables_replace_the_sources(folder: Path) -> None:
    raw = '[{name = "a", path = "here"}, {name = "b", path = "/there", include = ["*.rst"], max_bytes = 5}]'
    settings = load(folder, source(""), CTX_SOURCE=raw)
    assert [s.name for s in settings.source] == ["a", "b"]
    assert [s.path for s in settings.source] == [Path.cwd() / "here", Path("/there")]
    assert (settings.source[1].include, settings.source[1].max_bytes) == (("*.rst",), 5)


@pytest.mark.parametrize(
    ("variable", "raw", "key", "allowed"),
    [
        ("CTX_STORAGE__URL", "x", "storage.url", "uri"),
        ("CTX_STORRAGE__URI", "x", "storrage", "storage"),
        ("CTX___URI", "x", "unknown key", "storage"),
        ("CTX_STORAGE", "x", "storage", "table with keys"),
        ("CTX_CHUNKING__MAX_TOKENS", "many", "chunking.max_tokens", "integer"),
        ("CTX_CHUNKING__MAX_TOKENS", "", "chunking.max_tokens", "integer"),
        ("CTX_CHUNKING__MAX_TOKENS", "5", "chunking.max_tokens", "32"),
        ("CTX_SEARCH__LANGUAGES", "Spanish", "search.languages", "list"),
        ("CTX_SEARCH__WEIGHTS", "{vector = nan}", "search.weights.vector", "1000"),
        ("CTX_SEARCH__LANGUAGES", '["Klingon"]', "search.languages", "Spanish"),
        ("CTX_SEARCH__LANGUAGES", "[" * 5000, "search.languages", "list"),
        ("CTX_EMBEDDING__MODEL", "bge-m3", "embedding.model", "hashing"),
        ("CTX_SCHEDULE__CRON", "daily", "schedule.cron", "five fields"),
        ("CTX_STORAGE__URI", "gs://bucket/index", "storage.uri", "only local folders"),
        ("CTX_STORAGE__URI", "", "storage.uri", "must name a folder"),
        ("CTX_SOURCE", "docs", "source", "[[source]]"),
        ("CTX_SOURCE", '[{name = "docs", pth = "x"}]', "source[0].pth", "path"),
        ("CTX_SOURCE__NAME", "docs", "source", "[[source]]"),
        ("CTX_CHUNKING_MAX_TOKENS", "64", "two underscores", "CTX_CHUNKING__MAX_TOKENS"),
    ],
)
def test_a_mistake_in_a_variable_names_the_variable_not_the_file(
    folder: Path, variable: str, raw: str, key: str, allowed: str
) -> None:
    message = refusal(folder, "[search]\nrrf_k = 7\n", **{variable: raw})
    assert message.startswith(f"environment variable {variable}: {key}")
    assert allowed in message
    assert str(folder) not in message


def test_a_variable_cannot_set_keys_of_the_list_of_sources(folder: Path) -> None:
    assert refusal(folder, source(""), CTX_SOURCE__NAME="x").startswith("environment variable CTX_SOURCE__NAME: ")


def test_variables_of_other_programs_are_left_alone(folder: Path) -> None:
    assert load(folder, CTX_CACHE_DIR="/x", CTX_LOGS="1", CTX_SEARCHLIGHT="1", OTHER__KEY="1") == load(folder)


# Paths -----------------------------------------------------------------------------------------------------------


def test_relative_paths_start_from_the_file_or_from_the_working_directory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    text = source("") + "[storage]\nuri = 'index'\n[embedding]\npath = '~/models'\n"
    settings = load(folder, text)
    assert settings.source[0].path == folder / "docs"
    assert settings.storage.uri == folder / "index"
    assert settings.embedding.path == Path("/home/someone/models")
    settings = load(folder, text, CTX_STORAGE__URI="index", CTX_EMBEDDING__PATH="~/other")
    assert settings.source[0].path == folder / "docs"
    assert settings.storage.uri == Path.cwd() / "index"
    assert settings.embedding.path == Path("/home/someone/other")
    assert load(folder, "").storage.uri == folder / ".ctx/index"
    assert load(folder, "").embedding.path is None


def test_source_argument_replaces_every_source_by_one_named_docs(folder: Path, tmp_path: Path) -> None:
    text = '[[source]]\nname = "wiki"\npath = "w"\nmax_bytes = 9\n' + source('include = ["*.rst"]\nmax_bytes = 5\n')
    replaced = load(folder, text).with_single_source(Path("mine"))
    assert [(s.name, s.path) for s in replaced.source] == [("docs", Path.cwd() / "mine")]
    assert (replaced.source[0].include, replaced.source[0].max_bytes) == (("*.rst",), 5)
    assert replaced.storage == load(folder, text).storage


def test_source_argument_has_the_defaults_where_no_source_is_named_docs(folder: Path) -> None:
    settings = load(folder, '[[source]]\nname = "wiki"\npath = "w"\nmax_bytes = 9\ninclude = ["*.rst"]\n')
    [replaced] = settings.with_single_source(Path("/mine")).source
    assert (replaced.name, replaced.path) == ("docs", Path("/mine"))
    assert (replaced.max_bytes, "*.md" in replaced.include) == (10_000_000, True)


# Secrets ---------------------------------------------------------------------------------------------------------


def test_secrets_are_in_no_message_and_no_repr(folder: Path) -> None:
    key = {"CTX_EMBEDDING__API_KEY": SECRET}
    settings = load(folder, CTX_EMBEDDING__BASE_URL="https://host/v1", CTX_EMBEDDING__MODEL="m", **key)
    assert settings.embedding.api_key is not None
    assert settings.embedding.api_key.get_secret_value() == SECRET
    assert SECRET not in repr(settings) + str(settings) + repr(settings.embedding)
    message = refusal(folder, CTX_EMBEDDING__BASE_URL=f"https://me:{SECRET}@host/v1", CTX_EMBEDDING__MODEL="m", **key)
    assert "CTX_EMBEDDING__API_KEY" in message
    assert SECRET not in message
    assert SECRET not in refusal(folder, CTX_EMBEDDING__BASE_URL=f"ftp://me:{SECRET}@host", **key)
    assert SECRET not in refusal(folder, CTX_EMBEDDING__MODEL="unknown", **key)
    assert SECRET not in refusal(folder, CTX_STORAGE__URI=f"s3://me:{SECRET}@bucket/x", **key)
    assert SECRET not in refusal(folder, f"[embedding]\napi_key = '{SECRET}'\nunknown = 1")


def test_rerankers_and_models_of_voyage_are_set_by_plain_words(folder: Path) -> None:
    settings = load(
        folder, CTX_SEARCH__RERANK="cross-encoder", CTX_SEARCH__RERANK_MAX_USD="1", CTX_EMBEDDING__MODEL="voyage-4"
    )
    assert (settings.search.rerank, settings.search.rerank_max_usd) == ("cross-encoder", 1.0)
    assert (settings.embedding.model, settings.embedding.base_url) == ("voyage-4", None)


def test_settings_do_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().search.rrf_k = 3  # type: ignore[misc]


# Schedule --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cron",
    [
        "0 3 * * *", "*/15 * * * *", "0 8-18/2 * * mon-fri", "0 0 1,15 * *", "5 4 29 FEB *", "0 3 * jan-mar 7",
        "0 0 31 1,3 *", "59 23 31 12 6", "10/20 * * * *", "0 3 * * 0-7",
    ],
)  # fmt: skip
def test_a_cron_expression_is_taken_as_it_is_written(folder: Path, cron: str) -> None:
    assert load(folder, f"[schedule]\ncron = '{cron}'").schedule.cron == cron


@pytest.mark.parametrize(
    "cron",
    [
        "", "*", "0 3 * *", "0 3 * * * *", "@daily", "99 * * * *", "0 24 * * *", "0 3 0 * *", "0 3 32 * *",
        "0 3 * 13 *", "0 3 * * 8", "5-1 * * * *", "1,,2 * * * *", "*/0 * * * *", "*/90 * * * *", "-5 * * * *",
        "1.5 * * * *", "a * * * *", "0 3 * mon *", "0 3 * * jan", "0 3 30 2 *", "0 3 31 4,6 *", "٣ 3 * * *",
        "0 3 * * monday", "* * * * */8",
    ],
)  # fmt: skip
def test_a_cron_expression_that_cannot_work_is_refused(folder: Path, cron: str) -> None:
    message = refusal(folder, f"[schedule]\ncron = '{cron}'")
    assert f"{folder / 'ctx.toml'}: schedule.cron: " in message


def cron_field(low: int, high: int, *words: str) -> st.SearchStrategy[str]:
    """Mostly valid: numbers and names at and just beyond the limits, in ranges, steps and lists."""
    atom = st.one_of(st.integers(low, high + 1).map(str), st.sampled_from(["*", *words]))
    span = st.tuples(atom, atom).map("-".join)
    step = st.tuples(st.one_of(atom, span), st.integers(0, high + 1).map(str)).map("/".join)
    return st.one_of(st.just("*"), atom, st.lists(st.one_of(atom, span, step), min_size=1, max_size=3).map(",".join))


CRON = st.tuples(
    cron_field(0, 59), cron_field(0, 23), cron_field(1, 31), cron_field(1, 12, "jan", "FEB"), cron_field(0, 7, "Sun")
).map(" ".join)


@settings(deadline=None)
@given(CRON)
def test_what_settings_accept_dagster_schedules(cron: str) -> None:
    try:
        ScheduleSettings(cron=cron)
    except ValueError:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Dagster warns of steps that it does not take literally
        dg.ScheduleDefinition(name="s", job_name="j", cron_schedule=cron, execution_timezone="UTC")
    now = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    assert len(set(itertools.islice(schedule_execution_time_iterator(now, cron, "UTC"), 2))) == 2


@pytest.mark.parametrize("timezone", ["UTC", "Europe/Madrid", "America/Argentina/Buenos_Aires", "Etc/GMT+3"])
def test_dagster_takes_the_time_zones_that_settings_accept(folder: Path, timezone: str) -> None:
    accepted = load(folder, f"[schedule]\ntimezone = '{timezone}'").schedule.timezone
    schedule = dg.ScheduleDefinition(name="s", job_name="j", cron_schedule="0 3 * * *", execution_timezone=accepted)
    assert schedule.execution_timezone == timezone


def test_checking_a_schedule_does_not_import_dagster() -> None:
    code = (
        "import sys; from ctx_pipeline.settings_file import load_settings;"
        "load_settings({'CTX_SCHEDULE__CRON': '0 3 * * *', 'CTX_SCHEDULE__TIMEZONE': 'Europe/Madrid'});"
        "sys.exit('dagster' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
