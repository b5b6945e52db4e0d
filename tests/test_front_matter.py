"""Front matter: every entry that can be read is, the rest is named, and none of it becomes text or a heavy load."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctx_pipeline.documents.front_matter import MOST_CHARS, front_matter_end, read_front_matter
from ctx_pipeline.documents.yaml_mapping import MAX_CHARS, MAX_VALUES


def values(text: str) -> dict[str, object]:
    matter = read_front_matter(text)
    assert matter is not None
    return matter.values


def yaml(*lines: str) -> str:
    return "\n".join(["---", *lines, "---", "", "Text.", ""])


# Formats ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    "lines",
    [
        ["---", "title: A guide", "tags: [a, b]", "---"],
        ["---", "# a remark", "", "title: A guide", "tags:", "- a", "- b", "..."],
        ["", " ", "---", "title: A guide", "tags: [a, b]", "---"],
        ["+++", "title = 'A guide'", "tags = ['a', 'b']", "+++"],
        ["{", '  "title": "A guide",', '  "tags": ["a", "b"]', "}"],
        ['{"title": "A guide", "tags": ["a", "b"]}'],
        [";;;", '"title": "A guide",', '"tags": ["a", "b"]', ";;;"],
    ],
    ids=["YAML", "YAML with dots", "after blank lines", "TOML", "JSON", "JSON in a line", "JSON in fences"],
)
def test_every_format_gives_the_same_mapping(lines: list[str], newline: str) -> None:
    text = newline.join([*lines, "", "# Heading", ""])
    for whole in (text, "\ufeff" + text):
        matter = read_front_matter(whole)
        assert matter is not None
        assert (matter.values, matter.warnings) == ({"title": "A guide", "tags": ["a", "b"]}, ())
        assert whole[matter.end :].strip() == "# Heading"
        assert front_matter_end(whole) == matter.end


@pytest.mark.parametrize(
    "text",
    [
        *("", "---", "---\n", "Text.\n\n---\ntitle: x\n---\n", "---\n\n# Title\n\ntext\n\n---\n", "+++\nwords\n+++\n"),
        *("---\n- a\n- list\n---\n", "--- a\ntitle: x\n---\n", "---\ntitle: never closed\n\nText.\n"),
        "---\n\nNote: this is prose that goes on\nover several lines.\n\nAnd a second paragraph.\n\n---\n",
        "---\nhttps://example.org says so\n---\n",
        *(
            "{{< shortcode >}}\n",
            "{% include x %}\n",
            '{"a": 1} is an object\n',
            "{never closed",
            '{\n"a": [1,\n\nText',
        ),
    ],
)
def test_what_is_no_front_matter_is_text(text: str) -> None:
    assert (read_front_matter(text), front_matter_end(text)) == (None, 0)


def test_empty_front_matter_is_front_matter() -> None:
    assert values("---\n---\nText.") == {}


# Titles -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "written", ["1.10", "No", "010", "12:30", "2026-05-01", "21E08", "1_000", "true", "0x1F", ".5", "on", "1e3"]
)
def test_a_title_is_what_was_written(written: str) -> None:
    for line in (f"title: {written}", f"title: '{written}'", f"title: {written}   # a remark", f"Title: {written}"):
        [title, owner] = values(yaml(line, "owner: ops")).values()
        assert (title, owner) == (written, "ops")


@pytest.mark.parametrize("written", ["1.10", "1_000", "2026-05-01", "true", "12"])
def test_a_title_in_toml_is_what_was_written(written: str) -> None:
    text = "+++\nweight = 1.10\n[params]\ntitle = 3\n+++\n\nText.\n".replace("weight", f"title = {written}\nweight")
    assert values(text) == {"title": written, "weight": 1.1, "params": {"title": 3}}
    assert values('{"author": {"title": 1.5}, "title": 1.10}\n') == {"author": {"title": 1.5}, "title": "1.10"}


@pytest.mark.parametrize(
    ("line", "title"),
    [
        ("title: Upgrade guide: from 3 to 4", "Upgrade guide: from 3 to 4"),
        ("title: Ticket #42 explained", "Ticket #42 explained"),
        ("title: @acme/router", "@acme/router"),
        ("title: `code` first", "`code` first"),
        ("title: *args and how to use them", "*args and how to use them"),
        ("title: !important Read this", "!important Read this"),
        ("title: %percent", "%percent"),
        ('title: "Fast" mode', '"Fast" mode'),
        ("title: 'Fast' mode", "'Fast' mode"),
        ("title: 'It's here'", "It's here"),
        ('title: "C:\\Users"', "C:\\Users"),
        ("title: [draft] Limits", "[draft] Limits"),
        ("title: {{ page.name }}", "{{ page.name }}"),
        ("title: \tIndented", "Indented"),
        ("title:Close", "Close"),
        ("title: 2024-13-45", "2024-13-45"),
        ("title: " + "9" * 5_000, "9" * 5_000),
        ("title: Two: parts\n  on two lines", "Two: parts on two lines"),
    ],
)
def test_a_line_of_text_needs_no_quotes(line: str, title: str) -> None:
    assert values(yaml(line, "owner: ops")) == {"title": title, "owner": "ops"}
    assert values(yaml("owner: ops", line)) == {"title": title, "owner": "ops"}


# What cannot be read ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("broken", "place"),
    [
        (["tags: [a, b"], "`tags` (line 3)"),
        (["map: {a: b"], "`map` (line 3)"),
        (["tags:", "  - [a", "  - b"], "`tags` (line 3)"),
        (["self: &s [*s]"], "`self` (line 3)"),
        (["no entry at all"], "line 3"),
        (["deep: " + "[" * 1_000], "`deep` (line 3)"),
    ],
)
def test_an_entry_that_cannot_be_read_is_named_and_the_others_are_kept(broken: list[str], place: str) -> None:
    matter = read_front_matter(yaml("title: Limits", *broken, "owner: ops", "weight: 2"))
    assert matter is not None
    assert matter.values == {"title": "Limits", "owner": "ops", "weight": 2}
    [warning] = matter.warnings
    assert warning.startswith("front matter is not valid YAML (line ")
    assert warning.endswith(f"; left out: {place}")


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("+++\ntitle = Limits of use\nowner = 'ops'\n[params]\na = 1\n+++\n", "TOML"),
        ('{\n  "title": "Limits of use",\n  "params": {\n    "a": 1\n  },\n  "owner": "ops",\n}\n', "JSON"),
        (';;;\n"title": "Limits of use"\n"owner": "ops",\n"params": {"a": 1}\n;;;\n', "JSON"),
    ],
)
def test_the_other_formats_are_mended_too(text: str, form: str) -> None:
    matter = read_front_matter(text)
    assert matter is not None
    assert matter.values == {"title": "Limits of use", "owner": "ops", "params": {"a": 1}}
    [warning] = matter.warnings
    assert f"not valid {form}" in warning
    assert warning.endswith("its lines were read one by one")


def test_a_warning_names_the_first_entries_only() -> None:
    matter = read_front_matter(yaml("title: x", *(f"k{n}: [" for n in range(1_000))))
    assert matter is not None
    assert matter.values == {"title": "x"}
    assert matter.warnings[0].endswith("`k4` (line 7), and 995 more")


# Aliases and sizes --------------------------------------------------------------------------------------------------


def test_aliases_stand_for_what_they_name() -> None:
    text = yaml("title: Handbook", "base: &b {version: &v v3.1}", "label: *v", "copy: *b", "more:", "  <<: *b")
    expected = {"base": {"version": "v3.1"}, "label": "v3.1", "copy": {"version": "v3.1"}, "more": {"version": "v3.1"}}
    assert values(text) == {"title": "Handbook", **expected}


def count(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(count, inner))


@pytest.mark.parametrize("broken", [[], ["broken: a: b"]], ids=["well-formed", "read entry by entry"])
def test_aliases_of_aliases_do_not_grow_beyond_bounds(broken: list[str]) -> None:
    ten = ", ".join(["x"] * 10)
    levels = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 9)]
    bombs = [f"b{n}: [&a [{ten}], &b [{', '.join(['*a'] * 90)}], {', '.join(['*b'] * 10)}]" for n in range(20)]
    for lines in ([f"l0: &l0 [{ten}]", *levels], bombs):
        matter = read_front_matter(yaml("owner: ops", *broken, *lines))
        assert matter is not None
        assert matter.values["owner"] == "ops"
        assert count(matter.values) < 3 * MAX_VALUES
        assert matter.warnings


def test_long_front_matter_is_read_to_its_end() -> None:
    redirects = ["redirect_from:", *("  - /old/page/which-moved.html" for _ in range(1_000))]
    matter = read_front_matter(yaml("# Redirects", *redirects, "title: Gateway"))
    assert matter is not None
    assert (len(matter.values["redirect_from"]), matter.values["title"], matter.warnings) == (1_000, "Gateway", ())


def test_front_matter_beyond_what_is_read_keeps_its_small_entries() -> None:
    redirects = ["redirect_from:", *("  - /old/page/which-moved.html" for _ in range(MAX_CHARS // 20))]
    text = yaml("owner: ops", *redirects, "title: Gateway")
    matter = read_front_matter(text)
    assert matter is not None
    assert matter.values == {"owner": "ops", "title": "Gateway"}
    assert "left out: `redirect_from` (line 3)" in matter.warnings[0]
    assert text[matter.end :].strip() == "Text."
    assert read_front_matter(yaml("title: x", "# " + "x" * MOST_CHARS)) is None


@pytest.mark.parametrize(
    "text",
    [
        *("\n" * 1_000_000, " " * 1_000_000, "---\n" * 200_000, "---\na: b\n" + "k: v\n" * 500_000, '{"a":' * 200_000),
        *("---\nt: a: b\n" + "key: value: x\n" * 60_000 + "---\n", "---\na: b\na" + " " * 900_000 + "\n---\n"),
        *('---\nx: "' + '"' * 900_000 + "\n---\n", "---\nx: y: z\nx: " + "& " * 400_000 + "[\n---\n"),
        *("+++\n" + "a = \n" * 100_000 + "+++\n", "+++\na = 1\n[" + "]" * 900_000 + "x\n+++\n"),
        *('{\n"a":\n' + "[" * 900_000 + "\n}\n", "---\na: " + "[" * 60_000 + "\n---\n", "---\n\ta: b\n---\n"),
        *(
            "---\na: \x00\n---\n",
            "---\na: 1\n? [b]\n: c\n---\n",
            "---\na: \ud800\n---\n",
            "---\na: !!bool maybe\n---\n",
        ),
    ],
    ids=lambda text: ascii(text[:12]),
)
def test_hostile_front_matter(text: str) -> None:
    matter = read_front_matter(text)
    assert front_matter_end(text) == (matter.end if matter else 0)


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from([*"abk:[]{}&*!|>'\"#-=,\t\n\r ", "key: ", "title: ", "\n- ", "a = ", "\n", "1.10", "\x85"])
        | st.characters(),
        max_size=30,
    ).map("".join),
    st.sampled_from(["---", "+++", ";;;", "{"]),
)
def test_any_content_is_read_or_is_text(content: str, fence: str) -> None:
    closing = "}" if fence == "{" else fence
    text = f"{fence}\n{content}\n{closing}\nText."
    matter = read_front_matter(text)
    assert front_matter_end(text) == (matter.end if matter else 0)
    assert matter is None or all(isinstance(key, str) for key in matter.values)
