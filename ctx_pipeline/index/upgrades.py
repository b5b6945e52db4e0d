"""Tables of earlier versions, brought to the schemas of this one in place."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def add_missing_columns(table: Any, schema: pa.Schema) -> list[str]:
    """Add the columns of `schema` that a table lacks, empty and nullable; their names. No commit for none.

    Rows that were there keep all they hold. A program of an earlier version can still write the table.
    """
    missing = [field for field in schema if field.name not in table.schema.names]
    if missing:
        table.add_columns([pa.field(field.name, field.type) for field in missing])
    return [field.name for field in missing]
