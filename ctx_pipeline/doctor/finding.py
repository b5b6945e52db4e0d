"""One thing that is not as it should be, and the remedies that findings share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

REFRESH = "run `ctx-pipeline refresh`"
FIX = "run `ctx-pipeline doctor --fix`, then `ctx-pipeline refresh`"
GIVE_UP_MEMO = "--give-up-memo"
MEMO_REMEDY = (
    "restore its folder from a backup; or run `ctx-pipeline doctor --fix`, which mends it where no row is lost; "
    f"`ctx-pipeline doctor --fix {GIVE_UP_MEMO}` keeps what can be read, and chunks of the rest are paid for again"
)
READ_AGAIN = (
    "nothing is mended while it cannot be read: see to permissions, the disk, memory and open files, then run "
    "`ctx-pipeline doctor` again"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be; a `note` is none, and tells what was left out."""

    check: str
    severity: Literal["note", "warning", "error"]
    message: str
    remedy: str
