"""``python3 -m toolchain``: provide the toolchain and print where it is.

Prints ``NAME=value`` lines (CLI, PULUMI_HOME) on stdout, and what it does on stderr.
"""

import argparse
import sys

from toolchain.errors import ToolchainError
from toolchain.provide import provide


def main() -> int:
    """Run the command line; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python3 -m toolchain", description="Provide Pulumi and its plugins.")
    parser.add_argument("--from-source", action="store_true", help="build, also when there is a pulumi on PATH")
    parser.add_argument("--no-download", action="store_true", help="build the plugins, do not try to download them")
    options = parser.parse_args()
    try:
        toolchain = provide(from_source=options.from_source, download=not options.no_download)
    except ToolchainError as error:
        print(f"toolchain: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(f"CLI={toolchain.cli}")
    if toolchain.home:
        print(f"PULUMI_HOME={toolchain.home}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
