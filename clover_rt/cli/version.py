"""`clover-rt version`: the versions that a report needs."""

from __future__ import annotations

import argparse
import sys

HELP = "print the version"
DESCRIPTION = "Print the version of clover-rt and of Python."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `version`: there are none."""


def main(args: argparse.Namespace) -> int:
    """Print the versions; return 0."""
    # reading package metadata costs more than all parsing
    from importlib import metadata

    try:
        version = metadata.version("clover-rt")
    except metadata.PackageNotFoundError:
        version = "(not installed: run from a source tree)"
    print(f"clover-rt {version}")
    print(f"python {sys.version.split()[0]}")
    return 0
