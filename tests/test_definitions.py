"""Definitions: what common languages define and what encloses a place, told by lines and indentation alone."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctx_pipeline.contexts.definitions import Definitions

SOURCES = {
    "Python": (
        'class Ledger(Base):\n    """Docs."""\n\n    def read(self, path: str) -> int:\n        for row in rows:\n'
        "            HERE = row\n\n    async def write(\n        self,\n    ) -> None:\n        pass\n",
        ["Ledger", "read", "write"],
        ["Ledger", "read"],
    ),
    "Rust": (
        "mod tests;\npub struct Row<T> {\n    x: T,\n}\n\nimpl<T: Clone> Display for Row<T>\nwhere\n    T: Debug,\n{\n"
        "    pub(crate) fn fmt<F>(\n        &self,\n    ) -> Result<(), Error> {\n        let HERE = 1;\n    }\n}\n",
        ["tests", "Row", "Row", "fmt"],
        ["Row", "fmt"],
    ),
    "Java": (
        "package a.b;\n\npublic final class Bill extends Base {\n  private static final int MAX = 3;\n\n"
        "  @Override\n  public List<Map<String, Item>> items(int n) throws IOException {\n    HERE();\n"
        "    return load(n);\n  }\n}\n",
        ["a.b", "Bill", "MAX", "items"],
        ["Bill", "items"],
    ),
    "C++": (
        "namespace db {\n#include <x>\nclass Column : public Base {\npublic:\n    explicit Column(Ref data);\n"
        "    size_t Size() const override;\nprivate:\n    int HERE;\n};\n\nvoid Column::Load(InputStream* in)\n{\n}\n",
        ["db", "Column", "Column", "Size", "Column::Load"],
        ["Column"],
    ),
    "Go": (
        "package main\n\ntype Server struct {\n\tport int\n}\n\nfunc (s *Server) Start(ctx context.Context) error {\n"
        "\tif err := HERE(); err != nil {\n\t\treturn err\n\t}\n}\n",
        ["main", "Server", "Start"],
        ["Start"],
    ),
    "TypeScript": (
        "export interface Options {\n  size: number;\n}\nexport default class Store<T> {\n  async load(id: string) {\n"
        "    if (HERE) {\n    }\n  }\n}\nexport const LIMIT = 5;\nfunction* walk(a) {\n}\n",
        ["Options", "Store", "load", "LIMIT", "walk"],
        ["Store", "load"],
    ),
    "C#": (
        "namespace A.B\n{\n    public sealed class Cart\n    {\n        public async Task<int> AddAsync(Item item)\n"
        "        {\n            HERE();\n        }\n    }\n}\n",
        ["A.B", "Cart", "AddAsync"],
        ["A.B", "Cart", "AddAsync"],
    ),
    "Kotlin": (
        "data class User(val name: String)\n\nobject Users {\n    suspend fun find(id: Int): User? {\n"
        "        HERE()\n    }\n}\n",
        ["User", "Users", "find"],
        ["Users", "find"],
    ),
    "Ruby": (
        "module Billing\n  class Invoice < Base\n    def self.open?(id)\n      HERE\n    end\n  end\nend\n",
        ["Billing", "Invoice", "self.open?"],
        ["Billing", "Invoice", "self.open?"],
    ),
    "Swift": (
        "extension Cart: Codable {\n    func total() -> Int {\n        HERE\n    }\n}\nprotocol Payable {\n}\n",
        ["Cart", "total", "Payable"],
        ["Cart", "total"],
    ),
    "SQL": (
        "CREATE TABLE IF NOT EXISTS invoices (\n    HERE int\n);\ncreate or replace function total(a int)\n",
        ["invoices", "total"],
        ["invoices"],
    ),
}


@pytest.mark.parametrize("language", SOURCES)
def test_definitions_and_what_encloses_a_place(language: str) -> None:
    text, names, enclosing = SOURCES[language]
    definitions = Definitions(text)
    assert [definition.name for definition in definitions.all] == names
    assert [definition.name for definition in definitions.enclosing(text.index("HERE"))] == enclosing


@pytest.mark.parametrize(
    "text",
    [
        "The class of 1999 was large.\nA type of plan.\nobject lessons are rare.\nimport duties (as of May) rose.",
        "Let us begin: the function is simple.\nWe went home (it was late).\nThe module was built in 1990.",
        "return load(n);\nif (ready(x)) {\n}\nfor (int i = 0; i < n(); i++) {\n}\nelse if (b(x)) {\n}",
        "",
    ],
)
def test_prose_and_statements_define_nothing(text: str) -> None:
    assert Definitions(text).all == []


def test_a_comment_belongs_to_the_code_below_it() -> None:
    text = (
        "class A:\n    def one():\n        pass\n\n    # about two\n    def two():\n        pass\n# about b\ndef b():\n"
    )
    definitions = Definitions(text)
    assert [d.name for d in definitions.enclosing(text.index("# about two"))] == ["A"]
    assert definitions.enclosing(text.index("# about b")) == []


def test_definitions_between_offsets_begin_there() -> None:
    text = "def a():\n    pass\ndef b():\n    pass\ndef c():\n    pass\n"
    start, end = text.index("def b"), text.index("def c")
    assert [definition.name for definition in Definitions(text).between(start, end)] == ["b"]


@given(
    st.lists(st.sampled_from(["class A:", "def f(", "}", "{", "x", "", "  ", "\t", "\n", "// c", "a<b>", "(", ");"]))
)
def test_any_text_can_be_read_at_any_place(parts: list[str]) -> None:
    text = "".join(parts)
    definitions = Definitions(text)
    for offset in range(len(text)):
        enclosing = definitions.enclosing(offset)
        assert all(outer.start < inner.start for outer, inner in pairwise(enclosing))


@pytest.mark.parametrize(
    "piece", ["a<a> ", "impl<", "@a ", "x(", "func (", "impl a<b> for ", "a::", "a(b) ", "const a<"]
)
def test_a_long_hostile_text_is_read_in_time_with_its_length(piece: str) -> None:
    line = piece * (240 // len(piece))
    definitions = Definitions("\n".join([line, line + "{", line + "x(", line + ");"] * 500) + piece * 200_000)
    assert len(definitions.enclosing(0)) <= 1
