"""Write docs/features.md from the declarations in tapfinger.policy.encoding; --check only compares."""

from __future__ import annotations

import sys
from pathlib import Path

from tapfinger.policy.card import SCHEMAS
from tapfinger.policy.encoding.features import FeatureTable, Schema

TARGET = Path(__file__).resolve().parent.parent / "docs" / "features.md"

HEAD = """# Features: what a network is told

Written by `make docs` from `src/tapfinger/policy/encoding/`; do not edit by hand.

A feature is declared once, with its name, unit, sentence and source: in `type_features.py` or `profile_features.py`.
The columns of the inputs, this page and the digest on a model's card follow from the declaration. How to add one, and
what becomes of models that do not know it: [policy](policy.md#features).

A feature "per resource" has one column for each resource of the site, and so on. Those marked "of others" tell a
cluster about the other clusters; the network `no-han` does without them, `hints-only` keeps them.
"""

KINDS = {
    "cluster": "A cluster",
    "pending": "A waiting task",
    "running": "A running task",
    "pair": "A cluster and a task in its pending set",
    "menu": "A size on the menu of a cluster and a task",
}


def render() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(_schema(schema) for schema in SCHEMAS.values())])


def _schema(schema: Schema) -> str:
    parts = [f"## Schema `{schema.name}`", "", schema.sentence, "", f"Digest: `{schema.digest}`.", ""]
    for kind, table in schema.tables.items():
        parts += [f"### {KINDS[kind]} (`Inputs.{kind}`)", "", *_table(table), ""]
    return "\n".join(parts)


def _table(table: FeatureTable) -> list[str]:
    rows = ["| feature | unit | meaning |", "|---|---|---|"]
    for feature in table.features:
        more = [f"Per {feature.per}."] * bool(feature.per) + ["Of others."] * feature.of_others
        rows.append(f"| `{feature.name}` | {feature.unit} | {' '.join([feature.meaning, *more])} |")
    return rows


def main() -> None:
    """Write the page; with --check, exit with an error if it is out of date."""
    page = render()
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(page, encoding="utf-8")
    elif not TARGET.is_file() or TARGET.read_text(encoding="utf-8") != page:
        raise SystemExit("docs/features.md is not current; run: make docs")


if __name__ == "__main__":
    main()
