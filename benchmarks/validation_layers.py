"""Results of benchmarks.production_layers as measured cases of `validation_layers.yaml`.

python -m benchmarks.validation_layers production_decode.json production_prefill.json > measured.jsonl
python -m benchmarks.validation measured.jsonl --cases benchmarks/validation_layers.yaml
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

SCHEDULES = {"tbo uncapped": "tbo@0"}


def entries(document: dict[str, Any]) -> list[dict[str, Any]]:
    """One entry for each batch and number of SMs."""
    arguments = document["arguments"]
    groups: dict[str, dict[str, Any]] = {}
    for result in document["results"]:
        name = f"{arguments['phase']} {result['tokens']} tokens"
        if arguments["phase"] == "prefill":
            name += f" {result['comm_sms']} SMs"
        group = groups.setdefault(
            name,
            {
                "group": name,
                "layers": arguments["layers"],
                "makespans_ns": {},
                "facts": document["facts"],
            },
        )
        label = result["label"]
        group["makespans_ns"][SCHEDULES.get(label, label)] = result["makespans_ns"]
    return list(groups.values())


def main() -> None:
    """A line of JSON for each group of each file."""
    for name in sys.argv[1:]:
        for entry in entries(json.loads(Path(name).read_text(encoding="utf-8"))):
            print(json.dumps(entry))


if __name__ == "__main__":
    main()
