#!/usr/bin/env python3
"""Compare passes with llama.cpp's batches of the same sizes, interleaved on one machine.

    vs_llama_cpp.py --llama-bench BIN --pair q4=DIR,FILE.gguf --pair q8=DIR,FILE.gguf

A pair is a checkpoint folder and a GGUF of the same geometry; the model itself cannot be compared,
since llama.cpp has no preview: a 32-row preview stands against its 32-token batch, decode against
its one-token step, prefill of 512 tokens against the same. Every round runs each measurement of
each side once; ratios are of medians over the rounds, below 1 where clover-rt takes less time. What
a depth adds is the median of the differences of the rounds.

A preview must read the experts that its rows choose. Its figures count only while 75 to 110 of 256
experts are kept a layer with the coreset, and 140 or more without it: `counts` says so.

To make the peer: unpack the source package of llama-cpp-python 0.3.36, remove the dangling `.git`
file of `vendor/llama.cpp`, and build the target `llama-bench` there with CMake in Release mode. On
a processor with AMX build it once more with -DGGML_NATIVE=OFF and only the instruction sets up to
AVX512_VNNI turned on: that build is the one to compare with.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clover_rt.bench.machine import environment
from clover_rt.bench.passes import PROMPT

PREFILL = 512
KEPT = {"on": (75, 110), "off": (140, 256)}
Times = dict[str, list[float]]


@dataclass(frozen=True)
class Pair:
    """A checkpoint in a format and the peer's file."""

    name: str
    folder: Path
    gguf: Path

    @staticmethod
    def parse(text: str) -> Pair:
        name, _, rest = text.partition("=")
        folder, _, gguf = rest.partition(",")
        if not (name and folder and gguf):
            raise argparse.ArgumentTypeError(f"{text!r} is not NAME=DIR,FILE.gguf")
        return Pair(name, Path(folder), Path(gguf))


def peer(binary: Path, gguf: Path, threads: int, depth: int, repeats: int) -> dict[str, float]:
    """Return the peer's times in ms at one depth: of 32 rows, of one, of a prefill."""
    lengths = f"32,{PREFILL}" if depth == 0 else "32"
    command = [str(binary), "-m", str(gguf), "-t", str(threads), "-fa", "0", "-ngl", "0"]
    command += ["-p", lengths, "-n", "1", "-d", str(depth), "-r", str(repeats), "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    out = {}
    for test in json.loads(done.stdout):
        rows, new = test["n_prompt"], test["n_gen"]
        name = "decode" if new else "prefill" if rows == PREFILL else "preview"
        out[name] = statistics.median(test["samples_ns"]) / 1e6
    return out


def ours(folder: Path, args: argparse.Namespace, depths: list[int]) -> dict[str, Any]:
    """Return a report of `clover-rt bench` in a process of its own."""
    command = [sys.executable, "-m", "clover_rt", "bench", str(folder), "--json"]
    command += ["--precision", args.precision, "--repeats", str(args.repeats)]
    command += ["--chunk", str(PREFILL), "--depths", *map(str, depths)]
    environ = os.environ | {"CLOVER_RT_CPU_THREADS": str(args.threads)}
    done = subprocess.run(command, capture_output=True, text=True, env=environ)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def with_coreset(folder: Path, is_on: bool, where: Path) -> Path:
    """Return a folder of links to a checkpoint whose config turns the coreset on or off."""
    out = where / f"{folder.name}-{'on' if is_on else 'off'}"
    out.mkdir()
    for file in folder.iterdir():
        if file.name != "config.json":
            (out / file.name).symlink_to(file.resolve())
    config = json.loads((folder / "config.json").read_text())
    config["moe_block_coreset_enabled"] = is_on
    (out / "config.json").write_text(json.dumps(config))
    return out


def add(times: Times, report: dict[str, Any], coreset: str) -> None:
    """Add one round's figures of our side to the times."""
    for result in report["results"]:
        at = f"@{result['depth']}" if result["depth"] else ""
        preview = result["preview"]
        times[f"preview_{coreset}{at}"].append(preview["ms_median"])
        if at:
            continue
        times[f"masks_{coreset}"].append(result["preview_of_masks"]["ms_median"])
        times[f"experts_{coreset}"] = preview["distinct_experts_by_layer"]
        if coreset == "on":
            times["decode"].append(result["decode"]["ms_median"])
            times["decode_of_bandwidth"].append(result["decode"]["of_bandwidth"])
            times["bandwidth"].append(report["bandwidth"]["gb_per_s"])
    at_prefill = [r["prefill"] for r in report["results"] if r["depth"] == PREFILL + PROMPT]
    if coreset == "on" and at_prefill:
        p = at_prefill[0]
        times["prefill"].append(1e3 * PREFILL / p["tokens_per_s"])


def verdict(mine: Times, theirs: Times, depth: int) -> dict[str, Any]:
    """Return the ratios of medians of one pair."""
    middle = statistics.median
    out: dict[str, Any] = {
        "ours_ms": {k: _spread(v) for k, v in mine.items() if not k.startswith(("exp", "band"))},
        "peer_ms": {k: _spread(v) for k, v in theirs.items()},
        "bandwidth_gb_per_s": middle(mine["bandwidth"]),
        "decode_of_bandwidth": middle(mine["decode_of_bandwidth"]),
        "decode_ratio": middle(mine["decode"]) / middle(theirs["decode"]),
        "prefill_ratio": middle(mine["prefill"]) / middle(theirs["prefill"]),
    }
    for coreset, (low, high) in KEPT.items():
        kept = mine[f"experts_{coreset}"]
        out[f"preview_{coreset}"] = {
            "ratio": middle(mine[f"preview_{coreset}"]) / middle(theirs["preview"]),
            "experts_by_layer": kept,
            "counts": all(low <= n <= high for n in kept),
        }
    if f"preview@{depth}" in theirs:
        pairs = zip(mine[f"preview_on@{depth}"], mine["preview_on"], strict=False)
        peers = zip(theirs[f"preview@{depth}"], theirs["preview"], strict=False)
        added = middle([deep - flat for deep, flat in pairs])
        peer_added = middle([deep - flat for deep, flat in peers])
        out["depth_adds"] = {
            "depth": depth,
            "ours_ms": added,
            "peer_ms": peer_added,
            "ratio": added / peer_added,
        }
    return out


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "best": min(values), "rounds": len(values)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--llama-bench", type=Path, required=True, metavar="BIN")
    parser.add_argument("--pair", type=Pair.parse, action="append", required=True)
    parser.add_argument("--precision", default="fast", choices=("exact", "fast"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5, help="timed passes a round")
    parser.add_argument("--depth", type=int, default=8192, help="0: leave the depth out")
    parser.add_argument("--out", type=Path, help="write the JSON here as well")
    args = parser.parse_args()
    deep = [args.depth] if args.depth else []
    mine: dict[str, Times] = {p.name: defaultdict(list) for p in args.pair}
    theirs: dict[str, Times] = {p.name: defaultdict(list) for p in args.pair}
    with tempfile.TemporaryDirectory() as where:
        folders = {
            (p.name, c): with_coreset(p.folder.resolve(), c == "on", Path(where))
            for p in args.pair
            for c in KEPT
        }
        for done in range(args.rounds):
            for p in args.pair:
                for depth in (0, *deep):
                    found = peer(args.llama_bench, p.gguf, args.threads, depth, args.repeats)
                    for name, ms in found.items():
                        at = f"@{depth}" if depth else ""
                        theirs[p.name][name + at].append(ms)
                for coreset in KEPT:
                    depths = [0, PREFILL + PROMPT, *(deep if coreset == "on" else [])]
                    report = ours(folders[p.name, coreset], args, depths)
                    add(mine[p.name], report, coreset)
            print(f"round {done + 1} of {args.rounds}", file=sys.stderr)
    report = {
        "benchmark": "vs_llama_cpp",
        "schema": 1,
        **environment(),
        "settings": {n: getattr(args, n) for n in ("precision", "threads", "rounds", "repeats")},
        "results": {p.name: verdict(mine[p.name], theirs[p.name], args.depth) for p in args.pair},
    }
    text = json.dumps(report, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
