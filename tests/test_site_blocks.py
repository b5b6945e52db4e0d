"""What site generators add to Markdown is told from text: template code, shortcodes, admonitions, HTML tables, MDX."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctx_pipeline.chunking.fixed import FixedChunker
from ctx_pipeline.chunking.model import SizeLimit
from ctx_pipeline.chunking.recursive import RecursiveChunker, split
from ctx_pipeline.chunking.structure import StructureChunker
from ctx_pipeline.documents.blocks import Block
from ctx_pipeline.documents.model import Parsed
from ctx_pipeline.documents.structure import document_blocks
from tests.markdown_documents import count_words, size_limit

WIDE = size_limit(512, 379)


def blocks_of(text: str) -> list[Block]:
    return document_blocks(text, "text/markdown")


def all_blocks(blocks: Iterable[Block]) -> Iterator[Block]:
    for block in blocks:
        yield block
        yield from all_blocks(block.children)


def headings(text: str) -> list[str]:
    return [block.title for block in all_blocks(blocks_of(text)) if block.kind == "heading"]


def kinds(text: str) -> list[str]:
    return [block.kind for block in blocks_of(text)]


def chunk_texts(text: str, limit: SizeLimit = WIDE) -> list[str]:
    return [chunk.text for chunk in split(text, markdown=True, limit=limit)]


def prose(sentence_count: int) -> str:
    return " ".join(f"Sentence number {number} says this." for number in range(sentence_count))


# Template code ---------------------------------------------------------------------------------------------------

CODE = "# no heading\nrun --all\n\n# nor this\n- no item"


@pytest.mark.parametrize(
    ("opening", "closing"),
    [
        ("{% highlight bash %}", "{% endhighlight %}"),
        ("{%- highlight ruby linenos -%}", "{%- endhighlight -%}"),
        ("{% codeblock lang:sh %}", "{% endcodeblock %}"),
        ("{{< highlight go >}}", "{{< /highlight >}}"),
        ('{{< highlight go "linenos=table" >}}', "{{</ highlight >}}"),
        ("{{% highlight yaml %}}", "{{% /highlight %}}"),
        ("{{< mermaid >}}", "{{< /mermaid >}}"),
        (":::{code-block} python", ":::"),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_template_code_is_code(opening: str, closing: str, newline: str) -> None:
    text = f"# Title\n\nBefore.\n{opening}\n{CODE}\n{closing}\n\n## After\n\nText.\n".replace("\n", newline)
    assert headings(text) == ["Title", "After"]
    assert kinds(text) == ["heading", "paragraph", "fence", "heading", "paragraph"]
    [code] = [block for block in blocks_of(text) if block.kind == "fence"]
    assert text[code.start : code.end] == f"{opening}\n{CODE}\n{closing}".replace("\n", newline)


def test_template_code_in_lists_and_quotes_is_code() -> None:
    for prefix, rest in (("- ", "  "), ("> ", "> ")):
        source = "Run:\n\n{% highlight sh %}\n# no heading\n{% endhighlight %}"
        text = prefix + source.replace("\n", f"\n{rest}") + "\n\n# After\n"
        assert headings(text) == ["After"]
        assert "fence" in {block.kind for block in all_blocks(blocks_of(text))}


def test_raw_blocks_are_code_unless_they_wrap_markdown() -> None:
    assert headings("{% raw %}\n# {{ no heading }}\n{% endraw %}\n\n# Yes") == ["Yes"]
    page = "{% raw %}\n\n# Page\n\nText.\n\n```liquid\n# {{ no }}\n```\n\n{% endraw %}\n"
    assert headings(page) == ["Page"]
    assert kinds(page) == ["lead", "heading", "paragraph", "fence", "tail"]


@pytest.mark.parametrize(
    "opening",
    ["{% highlight sh %}", "{{< highlight >}}", "<table>", ":::note", "<!--", "{/*", "!!! note", "{% comment %}"],
)
def test_what_is_never_closed_is_text(opening: str) -> None:
    text = f"# Title\n\n{opening}\n\n## Next\n\nText.\n\n## Last\n\nText.\n"
    assert headings(text) == ["Title", "Next", "Last"]
    assert opening in "".join(chunk_texts(text))


def test_code_examples_of_templates_open_nothing() -> None:
    for example in ("{% highlight sh %}", ":::note", "<!--", "<table>"):
        text = f"```\n{example}\n```\n\n# Between\n\n```\n{{% endhighlight %}}\n:::\n-->\n</table>\n```\n"
        assert headings(text) == ["Between"]
        assert kinds(text) == ["fence", "heading", "fence"]


def test_divided_template_code_keeps_its_tags() -> None:
    code = "\n\n".join(f"# step {number}\nrun {number} --all" for number in range(30))
    chunks = chunk_texts(f"{{% highlight sh %}}\n{code}\n{{% endhighlight %}}", size_limit(60, 60))
    assert len(chunks) > 3
    assert chunks[0].startswith("{% highlight sh %}\n# step 0\nrun 0")
    assert chunks[-1].endswith("run 29 --all\n{% endhighlight %}")
    assert all(re.search(r"run \d+", chunk) for chunk in chunks)


# Shortcodes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "title"),
    [
        ('## {{% heading "prerequisites" %}}', "prerequisites"),
        ('## {{< term "Control plane" >}} of {{< param version >}}', "Control plane of"),
        ("## Release {{ site.version }} notes", "Release notes"),
        ("## {% include icon.html name='x' %} Setup", "Setup"),
        ('## [Guide]({{< ref "guide.md" >}})', "Guide"),
        ("## {% if page.beta %}", ""),
        ("## The `{{< figure >}}` shortcode", "The figure shortcode"),
        ("## Braces {in} prose", "Braces {in} prose"),
        ('## <Badge text="new" /> Tabs', "Tabs"),
    ],
)
def test_titles_do_without_shortcodes(source: str, title: str) -> None:
    assert headings(f"{source}\n\nText.\n") == [title]


def test_no_chunk_ends_inside_a_tag() -> None:
    tags = [
        '{{< figure src="/img/one.png" alt="A plan. With prices. And terms" >}}',
        '{% include note.html text="Read this. Then that." %}',
        '<Card title="One. Two. Three" href="/a">',
        "{{% param name of it. %}}",
    ]
    for tag in tags:
        text = "One. " + " ".join(f"Word {number}. {tag} more." for number in range(12))
        parsed = Parsed(text, "text/markdown", "t", "en")
        for limit in (size_limit(60, 60), size_limit(40, 45), size_limit(31, 40)):
            for chunker in (RecursiveChunker(limit, 0, "x"), FixedChunker(limit, 0, "x")):
                chunks = chunker.split(parsed)
                assert len(chunks) > 3
                assert sum(chunk.text.count(tag) for chunk in chunks) == 12


# Admonitions -----------------------------------------------------------------------------------------------------

ADMONITIONS = [
    "::: note\n{}\n:::::",
    ":::note\n\n{}\n\n:::",
    "::: warning Title\n{}\n:::",
    "::::info\n\n:::tip\n\nInner.\n\n:::\n\n{}\n\n::::",
    ":::{{note}}\n{}\n:::",
    "```{{warning}}\n{}\n```",
    '!!! note "Title"\n\n    {}',
    "??? tip\n    {}",
]


@pytest.mark.parametrize("form", ADMONITIONS)
def test_an_admonition_is_one_block_with_blocks_inside(form: str) -> None:
    inner = "One.\n\n## Inside\n\n- item\n\n```sh\n# no heading\n```"
    indent = "    " if form[0] in "!?" else ""
    text = "# Title\n\n" + form.format(inner.replace("\n", f"\n{indent}")) + "\n\n# After\n\nText.\n"
    assert kinds(text) == ["heading", "admonition", "heading", "paragraph"]
    assert headings(text) == ["Title", "Inside", "After"]
    inside = {block.kind for block in all_blocks(blocks_of(text)[1].children)}
    assert {"paragraph", "list", "fence"} <= inside
    # A heading inside an admonition is in no path.
    assert [chunk.heading_path for chunk in split(text, markdown=True, limit=WIDE)] == [("Title",), ("After",)]


@pytest.mark.parametrize("form", ADMONITIONS)
def test_an_admonition_stays_whole_where_it_fits(form: str) -> None:
    source = form.format(prose(5))
    text = f"{prose(12)}\n\n{source}\n\n{prose(12)}"
    assert any(source in chunk for chunk in chunk_texts(text, size_limit(1000, 80)))
    indent = "\n\n    " if form[0] in "!?" else "\n\n"
    large = form.format(indent.join([prose(4)] * 6))
    parts = chunk_texts(large, size_limit(1000, 60))
    assert len(parts) == 3 + ("Inner" in large)
    assert all(part.lstrip().startswith("Sentence") for part in parts[1:])


# HTML tables -----------------------------------------------------------------------------------------------------


def html_table(rows: int, *, blank_lines: bool = False) -> str:
    gap = "\n\n" if blank_lines else "\n"
    body = gap.join(f"<tr><td>Zone {row}</td>{gap}<td>{row} EUR</td></tr>" for row in range(rows))
    head = "<thead><tr><th>Zone</th><th>Price &amp; tax</th></tr></thead>"
    return gap.join(["<table>", head, "<tbody>", body, "</tbody>", "</table>"])


@pytest.mark.parametrize("blank_lines", [False, True])
def test_an_html_table_is_one_block_that_stays_whole_where_it_fits(blank_lines: bool) -> None:
    table = html_table(6, blank_lines=blank_lines)
    text = f"{prose(12)}\n\n{table}\n\n{prose(12)}"
    assert kinds(text) == ["paragraph", "table", "paragraph"]
    assert blocks_of(text)[1].head == ("Zone", "Price & tax")
    assert any(table in chunk for chunk in chunk_texts(text, size_limit(1000, 200)))
    structured = StructureChunker(size_limit(1000, 200), 0, "x").split(Parsed(text, "text/markdown", "t", "en"))
    assert any(table in chunk.text for chunk in structured)


def test_a_large_html_table_is_cut_at_its_rows() -> None:
    for newline in ("\n", ""):
        table = html_table(40).replace("\n", newline)
        first, *rest = split(table, markdown=True, limit=size_limit(1000, 40))
        assert first.text.startswith("<table>") and "Zone 0</td>" in first.text and not first.table_head
        assert len(rest) > 3
        assert all(chunk.text.startswith("<tr>") and chunk.table_head == ("Zone", "Price & tax") for chunk in rest)


def test_html_tables_nest_and_end_where_they_are_closed() -> None:
    inner = html_table(1, blank_lines=True)
    outer = f"<table>\n<tr><td>\n\n{inner}\n\n</td></tr>\n\n<tr><td># no heading</td></tr>\n</table>"
    text = f"# Title\n\n{outer}\n\n## After\n\n<table>\n\n# Not closed\n\nText.\n"
    assert headings(text) == ["Title", "After", "Not closed"]
    assert [text[b.start : b.end] for b in blocks_of(text) if b.kind == "table"] == [outer]


def test_an_html_table_below_other_html_or_text_is_a_block_too() -> None:
    table = html_table(2, blank_lines=True)
    for before in ('<div class="wide">', "Text before.", '<img src="a.png" alt="A plan">'):
        assert [b.head for b in blocks_of(f"{before}\n{table}\n") if b.kind == "table"] == [("Zone", "Price & tax")]
    assert "table" in {b.kind for b in all_blocks(blocks_of("- Item:\n\n" + re.sub("(?m)^", "  ", table)))}


@pytest.mark.parametrize(
    "table",
    [
        "<table><tr><td>a</td><td>b</td></tr><tr><td>1</td><td>2</td></tr></table>",
        "<table><tr><th>Name</th><td>Ana</td></tr><tr><th>Age</th><td>30</td></tr></table>",
        "<table></table>",
        "<table><tr></tr></table>",
    ],
)
def test_a_table_without_a_header_row_has_no_head(table: str) -> None:
    assert [block.head for block in blocks_of(table)] == [()]


# What says nothing alone -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lead",
    [
        '<a id="limits"></a>',
        '<a name="limits"/>',
        "import Tabs from '@theme/Tabs';\nimport {a, b} from '../b';",
        "export const plan = {\n  name: 'x',\n};",
        '{{< tabs name="os" >}}\n{{% tab name="Linux" %}}',
        "{% include intro.html %}",
        '<Tabs groupId="os">',
        "(limits)=",
        "&nbsp;",
    ],
)
def test_what_opens_something_joins_what_follows(lead: str) -> None:
    for level in ("##", "###"):
        for sentences in range(8, 24):
            text = f"# T\n\n## A\n\n{prose(sentences)}\n\n{lead}\n\n{level} B\n\n{prose(9)}\n\n## C\n\nText.\n"
            chunks = chunk_texts(text, size_limit(1000, 90))
            assert any(f"{lead}\n\n{level} B\n\nSentence" in chunk for chunk in chunks)
    text = f"{lead}\n\n# T\n\nText.\n\n{lead}\n\n## A\n\nMore.\n\n## B\n\nEnd.\n\n{lead}"
    assert chunk_texts(text) == [
        f"{lead}\n\n# T\n\nText.",
        f"{lead}\n\n## A\n\nMore.",
        f"## B\n\nEnd.\n\n{lead}",
    ]


@pytest.mark.parametrize("tail", ["</Tabs>", "{{% /tab %}}\n{{< /tabs >}}", "</div>", "{% endif %}"])
def test_what_closes_something_joins_what_precedes(tail: str) -> None:
    room = 110
    for sentences in range(10, 24):
        text = f"## A\n\n{prose(sentences)}\n\n{tail}\n\n{prose(16)}\n\n{tail}\n\n## B\n\nText.\n"
        chunks = chunk_texts(text, size_limit(1000, room))
        for before, chunk in pairwise(chunks):
            assert not chunk.startswith(tail) or sum(count_words([before, tail])) > room


def test_a_heading_without_content_joins_a_neighbour_that_has_room() -> None:
    room = 140
    for sentences in range(10, 24):
        text = f"# T\n\n## A\n\n{prose(sentences)}\n\n### Empty\n\n## B\n\n{prose(5)}\n\n## Last"
        for strategy in (RecursiveChunker, StructureChunker):
            chunks = strategy(size_limit(1000, room), 0, "x").split(Parsed(text, "text/markdown", "t", "en"))
            for before, chunk in pairwise(chunks):
                if chunk.text in ("### Empty", "## Last"):
                    assert sum(count_words([before.text, chunk.text])) > room


# Any text --------------------------------------------------------------------------------------------------------

LINES = [
    *("{% highlight sh %}", "{% endhighlight %}", "{{< highlight go >}}", "{{< /highlight >}}", "{% raw %}"),
    *("{% endraw %}", "<!-- a", "b -->", "<!-- whole -->", "{/* a */}", ":::note", ":::", "::::tip", "::::", "```"),
    *("```{note}", "!!! note", "    indented", '=== "Tab"', "<table>", "</table>", "<tr><th>a</th></tr>", "<div>"),
    *("# Heading", "", "", "text. More text.", "- item", "| a | b |", "|---|---|", "{{% heading 'x' %}}", "</Tabs>"),
    *("<Tabs>", "import a from 'b'", "![x](data:image/png;base64," + "iVBOR" * 90 + ")", "[//]: # (note)", "{# c #}"),
]
prefixes = st.sampled_from(["", "", "", "", "> ", "- ", "  ", "    "])
site_texts = st.tuples(
    st.lists(st.tuples(prefixes, st.sampled_from(LINES)).map("".join), max_size=25).map("\n".join),
    st.sampled_from(["\n", "\n", "\r\n", "\r"]),
).map(lambda parts: parts[0].replace("\n", parts[1]))


@settings(max_examples=300, deadline=None)
@given(text=site_texts)
def test_blocks_cover_the_text_at_every_depth(text: str) -> None:
    def assert_covers(blocks: Iterable[Block], position: int, end: int) -> None:
        for block in blocks:
            assert position <= block.start < block.end <= end
            assert not text[position : block.start].strip()
            spans = [block.start, *(offset for span in block.left_out for offset in span), block.end]
            assert spans == sorted(spans)
            if block.children:
                assert_covers(block.children, block.start, block.end)
            position = block.end
        assert not text[position:end].strip()

    assert_covers(blocks_of(text), 0, len(text))


@settings(max_examples=200, deadline=None)
@given(text=site_texts)
def test_structure_does_not_depend_on_the_kind_of_newline(text: str) -> None:
    unix = re.sub(r"\r\n?", "\n", text)
    assert [(b.kind, b.title) for b in all_blocks(blocks_of(text))] == [
        (b.kind, b.title) for b in all_blocks(blocks_of(unix))
    ]


@pytest.mark.parametrize(
    "text",
    [
        "{% highlight x %}\n" * 20_000,
        "{% raw %}\n\n" * 20_000 + "{% endraw %}",
        "<!--" * 100_000,
        "<!--\n\n" * 20_000,
        "-->\n\n" + "a <!--\n\n" * 20_000,
        ":::" * 100_000,
        ":::note\n" * 20_000,
        ":::a\n" * 10_000 + ":::\n" * 10_000,
        "".join(":" * count + "a\n" for count in range(3, 600)) + "".join(":" * n + "\n" for n in range(600, 3, -1)),
        "<table>\n\n" * 20_000,
        "<table><tr><td>" * 10_000 + "</table>" * 10_000,
        "{{<" * 100_000,
        "{{% a " * 50_000,
        "`" * 3 + "{note}\n" * 20_000,
        "!!! note\n    " * 20_000,
        "".join(" " * 4 * depth + "!!! note\n" for depth in range(200)),
        "<img =data:a/b," * 20_000,
        "![](data:image/png;base64," + "A" * 500_000,
        "import {" + "a," * 100_000,
        "<a><b " * 50_000,
        "|" + "a|" * 20_000 + "\n|" + "-|" * 20_000,
    ],
    ids=lambda text: repr(text[:14]),
)
def test_hostile_text_is_cut_within_the_limits(text: str) -> None:
    chunks = split(text, markdown=True, limit=WIDE)
    assert all(chunk.tokens <= 512 and chunk.embedder_tokens <= 379 for chunk in chunks)
    assert all(text[chunk.start : chunk.end] == chunk.text for chunk in chunks)
