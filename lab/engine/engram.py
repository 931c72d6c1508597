"""The SIMULATED packing of the engram: files of the right names with one line in each, from a checkpoint that is there.

Options, names, `.partial` and rename, and that nothing is packed twice are those of the real program. Its words are
guessed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from .weights import WeightsError, check_config, shards

LAYERS = (1, 14)
CHECKPOINT = "/models/DeepSeek-V4.1-Flash"


def main(words: list[str], env: Mapping[str, str]) -> int:
    """Entry point: `--rank R --tp N --out FOLDER`."""
    options = dict(zip(words[::2], words[1::2], strict=False))
    if options.keys() != {"--rank", "--tp", "--out"}:
        print("usage: pack_engram.py --rank R --tp N --out FOLDER", file=sys.stderr)
        return 2
    rank, size, out = options["--rank"], options["--tp"], Path(options["--out"])
    checkpoint = Path(env.get("DSV41_SOURCE", CHECKPOINT))
    try:
        check_config(checkpoint)
        read = [file.name for file in shards(checkpoint)]
        for layer in LAYERS:
            file = out / f"engram-l{layer}-r{rank}of{size}.bin"
            if file.exists():
                print(f"{file}: there already")
                continue
            partial = file.with_name(f"{file.name}.partial")
            partial.write_text(f"{json.dumps({'simulated': True, 'layer': layer, 'shards': len(read)})}\n")
            partial.rename(file)
            print(f"{file}: {file.stat().st_size} bytes")
    except (WeightsError, OSError) as error:
        print(f"pack_engram: {error}", file=sys.stderr)
        return 1
    return 0
