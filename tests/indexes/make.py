"""Writes a small index with the version of the package that is imported, for the tests of upgrades.

    PYTHONPATH=<checkout of that version> python tests/indexes/make.py 0.1.0

makes tests/indexes/0.1.0.tar.gz: `docs/`, and the indexes `outline/` and `claude/`, the latter with contexts that the
emulator wrote. The documents are of the kinds that parsers of later versions read otherwise.
"""

from __future__ import annotations

import os
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

SETTINGS = """
[[source]]
name = "docs"
path = "{root}/docs"
[storage]
uri = "{root}/{method}"
[embedding]
model = "hashing"
[chunking]
max_tokens = 96
[contexts]
method = "{method}"
window_tokens = 1000
"""


def sentences(topic: str, count: int) -> str:
    return " ".join(f"Rule {number} of {topic} holds until the board decides otherwise." for number in range(count))


def documents() -> dict[str, str]:
    releases = "\n\n".join(
        f"# {major}.0.0 (20{10 + major}-03-02)\n\n### Fixes\n\n- {sentences(f'release {major}', 5)}"
        for major in range(9, 0, -1)
    )
    rows = "\n".join(f"| PUMP-{number:03} | Model {number} | {number * 100} |" for number in range(60))
    clauses = "\n\n".join(
        f"{number}. {name}\n\n{number}.1 {sentences(name.lower(), 9)}"
        for number, name in enumerate(("DEFINITIONS", "CONFIDENTIALITY", "TERM"), start=1)
    )
    return {
        "handbook.md": "---\ntitle: 1.10\nowner: ops\n---\n\n"
        + "\n\n".join(f"## Part {part}\n\n{sentences(f'part {part}', 8)}" for part in range(20)),
        "release-history.md": releases + "\n",
        "Views/Ledger view.md": f"Shows rows.\n\n### Options\n\n{sentences('the rows', 12)}\n",
        "v3/_index.md": f"## Install\n\n{sentences('installing', 9)}\n\n## Upgrade\n\n{sentences('upgrading', 9)}\n",
        "pumps.rst": "Pump maintenance\n================\n\nGreasing\n--------\n\n"
        + f"{sentences('grease', 9)}\n\nSeals\n-----\n\n{sentences('seals', 9)}\n",
        "agreement.txt": clauses + "\n",
        "pumps.md": f"# Pumps\n\nAll of them.\n\n| Code | Name | Warranty hours |\n| --- | --- | --- |\n{rows}\n",
        "vacaciones.md": "---\nowner: people and culture of the whole company\nreview: every year in the spring\n---\n"
        + "\n# Vacaciones\n\n"
        + "\n\n".join(
            f"## Plan {plan}\n\nEn este caso, el límite de días es otro. {'Cada persona avisa a su responsable. ' * 9}"
            for plan in ("Base", "Pro")
        ),
        "note.md": "# Note\n\nA single chunk needs no call.\n",
    }


def main(version: str) -> None:
    from ctx_pipeline.index.lock import storage_lock
    from ctx_pipeline.refresh import Pipeline
    from ctx_pipeline.settings_file import load_settings
    from tests.emulators.messages import KEY, MessagesEmulator

    target = Path(__file__).parent / f"{version}.tar.gz"
    with TemporaryDirectory() as folder, MessagesEmulator() as api:
        root = Path(folder)
        for name, text in documents().items():
            path = root / "docs" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        os.environ.update(ANTHROPIC_API_KEY=KEY, ANTHROPIC_BASE_URL=api.url)
        for method in ("outline", "claude"):
            (root / "ctx.toml").write_text(SETTINGS.format(root=root, method=method))
            pipeline = Pipeline(load_settings({"CTX_CONFIG": str(root / "ctx.toml")}))
            with storage_lock(pipeline.store.uri, "make.py"):
                summary = pipeline.refresh(f"run-of-{version}")
            print(method, summary.to_json())
        (root / "ctx.toml").unlink()
        with tarfile.open(target, "w:gz") as archive:
            archive.add(root, ".", filter=_anonymous)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if entry.name.endswith(".lock"):
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    main(sys.argv[1])
