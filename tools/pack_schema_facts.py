"""Pack the schema facts of a Kubernetes version into the embedded API server's package data.

Usage: python tools/pack_schema_facts.py [FOLDER]

FOLDER contains definitions.json, resources.json, table-columns.json and defaults.json (default: the
recorded facts in tests/data/conformance/schema).
"""

import gzip
import json
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_TARGET = _ROOT / "src/listwatch/schema/data/kubernetes.json.gz"


def main() -> None:
    """Write the package data; the result depends only on the facts."""
    given = sys.argv[1] if len(sys.argv) > 1 else _ROOT / "tests/data/conformance/schema"
    folder = Path(given)
    facts = {
        name: json.loads((folder / f"{file}.json").read_bytes())
        for name, file in (
            ("definitions", "definitions"),
            ("resources", "resources"),
            ("columns", "table-columns"),
            ("defaults", "defaults"),
        )
    }
    text = json.dumps(facts, separators=(",", ":"), sort_keys=True)
    text = text.replace("#/definitions/", "")
    _TARGET.write_bytes(gzip.compress(text.encode(), mtime=0))
    print(f"{_TARGET}: {_TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main()
