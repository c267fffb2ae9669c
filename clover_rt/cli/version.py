"""`clover-rt version`: the versions that a report needs."""

from __future__ import annotations

import argparse
import sys

HELP = "print versions"
DESCRIPTION = """Print the versions of clover-rt, Python, numpy and the plugin API, and the kind of
machine: what a report needs."""
SCHEMA = 1
NOT_INSTALLED = "not installed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `version`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def main(args: argparse.Namespace) -> int:
    """Print the versions; return 0."""
    found = versions()
    if args.json:
        import json

        print(json.dumps({"schema": SCHEMA, **found}))
    else:
        print("\n".join(f"{name} {value}" for name, value in found.items()))
    return 0


def versions() -> dict[str, str]:
    """Return version by name; works where a library is broken, which is when it is needed."""
    import platform
    from importlib import metadata

    def version(name: str) -> str:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return NOT_INSTALLED

    try:
        from clover_rt.api import PLUGIN_API as API

        api = f"{API[0]}.{API[1]}"
    # numpy may be what is broken: the rest is told all the same
    except ImportError as error:
        api = f"unknown ({error})"
    return {
        "clover-rt": version("clover-rt"),
        "python": sys.version.split()[0],
        "numpy": version("numpy"),
        "plugin-api": api,
        "platform": f"{platform.system()} {platform.machine()}",
    }
