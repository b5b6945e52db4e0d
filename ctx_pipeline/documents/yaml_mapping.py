"""YAML mappings with bounds: what front matter may cost, whatever is written in it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import yaml

MAX_CHARS, MAX_VALUES, MAX_DEPTH = 65_536, 20_000, 50
"""Of one document's front matter, which is stored with each of its chunks. Aliases count as often as they stand for
something, so that ten lines of nested ones cannot become more values than fit in memory."""

_REMARK = re.compile(r"[ \t]+#(?=\S)[^\r\n]*")


class UnreadableError(ValueError):
    """Why a text is no mapping that can be read, and on which of its lines, counted from 0."""

    def __init__(self, reason: str, line: int = 0) -> None:
        super().__init__(reason)
        self.line = line


@dataclass(slots=True)
class Allowance:
    """What is left of the bounds; shared by all texts that are read for one document."""

    chars: int = MAX_CHARS
    values: int = MAX_VALUES


def read_mapping(source: str, allowance: Allowance) -> dict[Any, Any]:
    """The mapping that a YAML text is; `title` is a text, written as it stands there (`1.10`, `No`, `2026-05-01`).

    Raises UnreadableError when it is none, when it is malformed, and when it exceeds the allowance.
    """
    import yaml

    if len(source) > allowance.chars:
        raise UnreadableError("more characters than are read")
    allowance.chars -= len(source)
    try:
        loader = _loader()(source)
        try:
            root = loader.get_single_node()
            if not isinstance(root, yaml.MappingNode):
                raise UnreadableError("no mapping of keys to values")
            allowance.values -= _size(root, {}, allowance.values)
            values = loader.construct_document(root)
        finally:
            loader.dispose()
    except UnreadableError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise UnreadableError(error.problem or "malformed", mark.line if mark else 0) from None
    # Beside YAMLError, nonsense raises RecursionError (nesting), ValueError (dates, huge integers), and KeyError,
    # IndexError or AttributeError (tags such as `!!bool maybe`).
    except Exception as error:
        raise UnreadableError(str(error).partition("\n")[0] or type(error).__name__) from None
    if not isinstance(values, dict):
        raise UnreadableError("no mapping of keys to values")
    return _with_written_title(values, root, source)


@cache
def _loader() -> type[yaml.SafeLoader]:
    import yaml

    class BoundedLoader(yaml.SafeLoader):
        """Composes nothing that is nested too deep for what reads it later."""

        depth = 0

        def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
            self.depth += 1
            if self.depth > MAX_DEPTH:
                raise UnreadableError(f"nested deeper than {MAX_DEPTH} levels")
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

    return BoundedLoader


def _size(node: yaml.Node, known: dict[int, int], most: int) -> int:
    """Values that a node stands for, those behind aliases as often as they are named. Raises beyond `most`."""
    import yaml

    if isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) in known:
        size = known[id(node)]
    else:
        known[id(node)] = most + 1  # of a node that holds itself
        pairs = isinstance(node, yaml.MappingNode)
        children = [inner for pair in node.value for inner in pair] if pairs else node.value
        size = known[id(node)] = 1 + sum(_size(child, known, most) for child in children)
    if size > most:
        raise UnreadableError(f"more than {MAX_VALUES:,} values, counting aliases")
    return size


def _with_written_title(values: dict[Any, Any], root: yaml.MappingNode, source: str) -> dict[Any, Any]:
    import yaml

    for key, value in root.value:
        is_title = isinstance(key, yaml.ScalarNode) and key.value.casefold() == "title"
        if is_title and isinstance(value, yaml.ScalarNode) and values.get(key.value) is not None:
            values[key.value] = _written(key, value, source)
    return values


def _written(key: yaml.ScalarNode, value: yaml.ScalarNode, source: str) -> str:
    """The scalar's text. `#42` after a space begins a remark for YAML, and is part of the title for who wrote it."""
    is_here = value.start_mark.line == value.end_mark.line == key.start_mark.line
    remark = _REMARK.match(source, value.end_mark.index) if is_here and value.style is None else None
    return f"{value.value}{remark[0].rstrip()}" if remark else str(value.value)
