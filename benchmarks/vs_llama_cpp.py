#!/usr/bin/env python3
"""Compare passes with llama.cpp's batches of the same sizes, interleaved on one machine.

    vs_llama_cpp.py --peer no-amx=BIN --peer native=BIN \\
        --pair q4=DIR,FILE.gguf --pair q8=DIR,FILE.gguf --out results/vs-llama-cpp.json

A peer is a build of `llama-bench`; a pair is a checkpoint folder and a GGUF of the same geometry.
The model itself cannot be compared, since llama.cpp has no preview: a 32-row preview stands against
its batch of 32 tokens, decode against its one-token step, prefill of 512 tokens against the same.
Every round runs each measurement of each side once. Ratios are of medians over the rounds, below 1
where clover-rt takes less time; what a depth adds is the median of the rounds' differences, which
is why there are 15. Decode is also judged by the weights it reads, over its time and the bandwidth
of the same run, and `run` by the memory it takes beyond the checkpoint's files. Four layers of one
token can be fewer bytes than the last-level cache holds; both sizes are in the report.

A preview must read the experts that its rows choose, so its figures count only where in every round
75 to 110 of 256 experts a layer were kept with the coreset, and 140 or more without: `counts` says
so; `--seed` draws other tokens. Previews of masks alone, which choose few, are timed beside it
without a target.

To make a peer: unpack the source package of llama-cpp-python 0.3.36, remove the dangling file
`vendor/llama.cpp/.git`, and build the target `llama-bench` there with CMake in Release mode. On a
processor with AMX build it once more with -DGGML_NATIVE=OFF and only the instruction sets up to
AVX512_VNNI turned on: that build is the one to compare with. The first peer named is the one that
targets are for, and the only one that is measured at a depth, which takes most of the time. Stopped
with Ctrl-C it reports the rounds that are whole.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from clover_rt.bench.machine import environment
from clover_rt.bench.passes import PROMPT, ROWS
from clover_rt.weights import Checkpoint

PREFILL = 512
ANSWER = 64
KEPT = {"on": (75, 110), "off": (140, 256)}
# what the two geometries may differ in: taps and vectors that only previews read
LIKE = 0.005
MB = 1e6
# at most so much time of the peer's, or memory; at least so much of the bandwidth
TARGETS = {
    "preview, coreset on": {"q4": 0.55, "q8": 0.55},
    "preview, coreset off": {"q4": 0.85, "q8": 0.80},
    "decode": {"q4": 1.0, "q8": 1.0},
    "prefill": {"q4": 0.8, "q8": 0.7},
    "decode, share of the bandwidth": {"q4": 0.75, "q8": 0.80},
    "what the depth adds": {"q4": 0.7, "q8": 0.7},
    "MB above the files": {"q4": 400.0, "q8": 400.0},
}
AT_LEAST = ("decode, share of the bandwidth",)
Times = dict[str, list[float]]


@dataclass(frozen=True)
class Pair:
    """A checkpoint in a format and the peer's file; the name of a format in TARGETS has targets."""

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


@dataclass(frozen=True)
class Peer:
    """A build of llama-bench."""

    name: str
    binary: Path

    @staticmethod
    def parse(text: str) -> Peer:
        name, _, binary = text.partition("=")
        if not (name and binary):
            raise argparse.ArgumentTypeError(f"{text!r} is not NAME=BIN")
        return Peer(name, Path(binary))


@dataclass
class Measured:
    """What the rounds gave for one pair: times in ms by measurement, a number a round.

    experts  distinct experts by layer of the timed previews, one list a round, by coreset
    about    what a peer says of itself
    cache    bytes of the weights that a decode reads, and of the last-level cache
    """

    ours: Times = field(default_factory=lambda: defaultdict(list))
    peers: dict[str, Times] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    experts: dict[str, list[list[int]]] = field(default_factory=lambda: defaultdict(list))
    about: dict[str, dict[str, Any]] = field(default_factory=dict)
    peak: dict[str, float] = field(default_factory=dict)
    cache: dict[str, float] = field(default_factory=dict)

    def extend(self, other: Measured) -> None:
        """Add the numbers of another round."""
        for name, values in other.ours.items():
            self.ours[name] += values
        for peer, times in other.peers.items():
            for name, values in times.items():
                self.peers[peer][name] += values
        for coreset, layers in other.experts.items():
            self.experts[coreset] += layers
        self.about |= other.about
        self.cache |= other.cache


def add_peer(
    measured: Measured, peer: Peer, pair: Pair, depths: list[int], args: argparse.Namespace
) -> None:
    """Run a peer and add its medians: of 32 rows at each depth, of one, of a prefill."""
    for depth in depths:
        lengths = f"{ROWS},{PREFILL}" if depth == 0 else f"{ROWS}"
        command = [str(peer.binary), "-m", str(pair.gguf), "-t", str(args.threads), "-fa", "0"]
        command += ["-ngl", "0", "-p", lengths, "-n", "1" if depth == 0 else "0"]
        command += ["-d", str(depth), "-r", str(args.repeats), "-o", "json"]
        for test in json.loads(output(command)):
            rows, new = test["n_prompt"], test["n_gen"]
            name = "decode" if new else "prefill" if rows == PREFILL else "preview"
            at = f"@{depth}" if depth else ""
            measured.peers[peer.name][name + at].append(statistics.median(test["samples_ns"]) / 1e6)
            told = ("build_number", "build_commit", "cpu_info", "model_type", "model_n_params")
            measured.about[peer.name] = {k: test.get(k) for k in told}


def add_ours(measured: Measured, folders: dict[str, Path], args: argparse.Namespace) -> None:
    """Run `clover-rt bench` with the coreset on and off, each in a process of its own."""
    for coreset, folder in folders.items():
        deep = [PREFILL + PROMPT, *depths_of(args)[1:]] if coreset == "on" else []
        command = [sys.executable, "-m", "clover_rt", "bench", str(folder), "--json"]
        command += ["--precision", args.precision, "--threads", str(args.threads)]
        command += ["--repeats", str(args.repeats), "--chunk", str(PREFILL)]
        command += ["--seed", str(args.seed)]
        add(measured, json.loads(output([*command, "--depths", "0", *map(str, deep)])), coreset)


def add(measured: Measured, report: dict[str, Any], coreset: str) -> None:
    """Add one report of `clover-rt bench` to the times."""
    times = measured.ours
    for result in report["results"]:
        depth, preview = result["depth"], result["preview"]
        if depth == PREFILL + PROMPT:
            times["prefill"].append(1e3 * PREFILL / result["prefill"]["tokens_per_s"])
            continue
        at = f"@{depth}" if depth else ""
        times[f"preview_{coreset}{at}"].append(preview["ms_median"])
        measured.experts[coreset].append(preview["distinct_experts_by_layer"])
        if depth == 0:
            times[f"masks_{coreset}"].append(result["preview_of_masks"]["ms_median"])
        if depth == 0 and coreset == "on":
            decode, bandwidth = result["decode"], report["bandwidth"]["gb_per_s"]
            times["decode"].append(decode["ms_median"])
            rate = 1e3 * decode["weight_gigabytes"] / decode["ms_median"]
            times["decode_share"].append(rate / bandwidth)
            times["bandwidth"].append(bandwidth)
            measured.cache = {
                "decode_weights_mb": 1e3 * decode["weight_gigabytes"],
                "last_level_cache_mb": report["bandwidth"]["last_level_cache_bytes"] / MB,
            }


def peak_of_run(folder: Path, args: argparse.Namespace) -> dict[str, float]:
    """Return the most memory that `clover-rt run` held, in MB, and how much of it is files."""
    prompt = ",".join(str(i) for i in range(1, PROMPT + 1))
    command = [sys.executable, "-m", "clover_rt", "run", "-q", "--model", str(folder)]
    command += ["--precision", args.precision, "--threads", str(args.threads)]
    command += ["--prompt-ids", prompt, "--max-new-tokens", str(ANSWER)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    told = process.stderr.read()
    # the largest resident size of this child alone, which /proc calls VmHWM
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{told.decode()[-2000:]}")
    files = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    unit = 1 if sys.platform == "darwin" else 1024
    return {"peak_mb": usage.ru_maxrss * unit / MB, "files_mb": files / MB}


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


def verdict(name: str, measured: Measured, depth: int) -> dict[str, Any]:
    """Return the figures of one pair, and its rows: each with its target and whether it is met."""
    ours = measured.ours
    return {
        "ours_ms": {
            k: spread(v) for k, v in ours.items() if k not in ("bandwidth", "decode_share")
        },
        "bandwidth_gb_per_s": spread(ours["bandwidth"]),
        "experts_by_layer": {
            coreset: {"least": min(map(min, rounds)), "most": max(map(max, rounds))}
            for coreset, rounds in measured.experts.items()
        },
        "memory": measured.peak,
        "cache": measured.cache,
        "peers": {
            peer: {**measured.about[peer], "ms": {k: spread(v) for k, v in times.items()}}
            for peer, times in measured.peers.items()
        },
        "rows": [asdict(row) for row in rows_of(name, measured, depth)],
    }


@dataclass(frozen=True)
class Row:
    """One line of the table.

    peer    "" where the row has none
    counts  was it measured as the target asks?
    met     None where there is no target, or it does not count
    """

    name: str
    peer: str
    value: float
    target: float | None = None
    counts: bool = True
    met: bool | None = None


def rows_of(name: str, measured: Measured, depth: int) -> Iterator[Row]:
    """Yield the rows of a pair; only the first peer has targets."""
    ours = measured.ours
    for i, (peer, theirs) in enumerate(measured.peers.items()):

        def row(
            what: str,
            value: float,
            counts: bool = True,
            peer: str = peer,
            aimed: bool = i == 0,
        ) -> Row:
            return judged(name if aimed else "", what, peer, value, counts)

        for coreset in KEPT:
            counts = keeps(measured.experts[coreset], *KEPT[coreset])
            ratio = ratio_of(ours[f"preview_{coreset}"], theirs["preview"])
            yield row(f"preview, coreset {coreset}", ratio, counts)
        for what in ("decode", "prefill"):
            yield row(what, ratio_of(ours[what], theirs[what]))
        if f"preview@{depth}" in theirs:
            added = statistics.median(differences(ours, "preview_on", depth))
            yield row(
                "what the depth adds",
                added / statistics.median(differences(theirs, "preview", depth)),
            )
    share = "decode, share of the bandwidth"
    yield judged(name, share, "", statistics.median(ours["decode_share"]))
    peak = measured.peak["peak_mb"] - measured.peak["files_mb"]
    yield judged(name, "MB above the files", "", peak)


def judged(pair: str, what: str, peer: str, value: float, counts: bool = True) -> Row:
    target = TARGETS[what].get(pair)
    met = None
    if target is not None and counts:
        met = value >= target if what in AT_LEAST else value <= target
    return Row(what, peer, value, target, counts, met)


def keeps(rounds: list[list[int]], least: int, most: int) -> bool:
    """Were so many experts used in every layer of every round?"""
    return all(least <= n <= most for layers in rounds for n in layers)


def ratio_of(ours: list[float], theirs: list[float]) -> float:
    return statistics.median(ours) / statistics.median(theirs)


def differences(times: Times, name: str, depth: int) -> list[float]:
    """Return what the depth added in each round, in ms."""
    return [a - b for a, b in zip(times[f"{name}@{depth}"], times[name], strict=True)]


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "best": min(values), "rounds": len(values)}


def check_geometry(pair: Pair, about: dict[str, Any]) -> None:
    """End the program where the two files do not have about as many parameters."""
    mine = sum(math.prod(v.shape) for v in Checkpoint.open(pair.folder).tensors.values())
    theirs = int(about["model_n_params"])
    if abs(mine - theirs) > LIKE * mine:
        sys.exit(f"{pair.folder} has {mine} parameters and {pair.gguf} {theirs}: not one geometry")


def one_round(args: argparse.Namespace, folders: dict[str, dict[str, Path]]) -> dict[str, Measured]:
    """Return what one round gives for each pair."""
    found = {pair.name: Measured() for pair in args.pair}
    for pair in args.pair:
        measured = found[pair.name]
        for peer in args.peer:
            depths = depths_of(args) if peer is args.peer[0] else [0]
            add_peer(measured, peer, pair, depths, args)
            check_geometry(pair, measured.about[peer.name])
        add_ours(measured, folders[pair.name], args)
    return found


def output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def depths_of(args: argparse.Namespace) -> list[int]:
    return [0, args.depth] if args.depth else [0]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", type=Peer.parse, action="append", required=True)
    parser.add_argument("--pair", type=Pair.parse, action="append", required=True)
    parser.add_argument("--precision", default="fast", choices=("exact", "fast"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--repeats", type=int, default=3, help="timed passes a round")
    parser.add_argument("--depth", type=int, default=8192, help="0: leave the depth out")
    parser.add_argument("--seed", type=int, default=0, help="of our previews' tokens")
    parser.add_argument("--out", type=Path, help="write the JSON here as well")
    args = parser.parse_args()
    found = {pair.name: Measured() for pair in args.pair}
    with tempfile.TemporaryDirectory() as where:
        folders = {
            pair.name: {
                coreset: with_coreset(pair.folder.resolve(), coreset == "on", Path(where))
                for coreset in KEPT
            }
            for pair in args.pair
        }
        done = 0
        try:
            while done < args.rounds:
                for name, measured in one_round(args, folders).items():
                    found[name].extend(measured)
                done += 1
                print(f"round {done} of {args.rounds}", file=sys.stderr)
        except KeyboardInterrupt:
            if not done:
                raise
            print(f"stopped: the report is of {done} whole rounds", file=sys.stderr)
        for pair in args.pair:
            found[pair.name].peak = peak_of_run(folders[pair.name]["on"], args)
    settings = ("precision", "threads", "repeats", "depth", "seed")
    report = {
        "benchmark": "vs_llama_cpp",
        "schema": 3,
        **environment(),
        "settings": {
            **{n: getattr(args, n) for n in settings},
            "rounds": done,
            "prompt": PROMPT,
            "rows": ROWS,
            "prefill": PREFILL,
            "checkpoints": {p.name: p.folder.name for p in args.pair},
            "files": {p.name: p.gguf.name for p in args.pair},
        },
        "results": {name: verdict(name, m, args.depth) for name, m in found.items()},
    }
    text = json.dumps(report, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
