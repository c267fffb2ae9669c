"""`clover-rt new-backend`: a package that is a backend from the start."""

from __future__ import annotations

import argparse

HELP = "write the package of a new backend"
DESCRIPTION = """Write a Python package for a backend of your own. It installs, is found, and runs
the model from the start: operations without a kernel run on the host. docs/plugins.md goes on
from there."""
EXAMPLES = """  clover-rt new-backend my_card
  clover-rt new-backend my_card path/to/folder"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `new-backend`."""
    parser.add_argument("name", metavar="NAME", help="what --backend will take, such as my_card")
    parser.add_argument(
        "folder",
        nargs="?",
        metavar="DIR",
        help="a new or empty folder (default: clover-rt-NAME here)",
    )


def main(args: argparse.Namespace) -> int:
    """Write the package and print what to do next; return 0. Raises BadInput."""
    import shlex
    from importlib import metadata
    from pathlib import Path

    from clover_rt.api import PLUGIN_API
    from clover_rt.kit import write_backend

    # names only: an installed plugin need not work for its name to be taken
    taken = {p.name for p in metadata.entry_points(group="clover_rt.backends")}
    folder = None if args.folder is None else Path(args.folder)
    target, files = write_backend(args.name, PLUGIN_API, folder, taken)
    print(f"wrote {target}:")
    for path in files:
        print(f"  {path}")
    print(f"""
next:
  cd {shlex.quote(str(target))}
  pip install -e ".[test]"
  clover-rt backends --why {args.name}
  clover-rt run --backend {args.name} "Hello"
  python -m pytest""")
    return 0
