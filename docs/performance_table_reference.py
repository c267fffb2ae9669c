"""Write the tables of README.md's section on performance from the results of the benchmarks:
python docs/performance_table_reference.py
"""

from __future__ import annotations

import json
import statistics
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"
PASSES, PEER = "passes-4-layers-cpu-fast.json", "vs-llama-cpp.json"
START = "<!-- made by docs/performance_table_reference.py from benchmarks/results -->\n"
END = "<!-- end -->\n"
KINDS = {
    "preview": "preview of 32 distinct tokens",
    "preview_of_masks": "preview of 32 masks",
    "decode": "decode of one token",
}
# what is divided by what in the rows that are ratios
PARTS = {
    "preview, coreset on": ("preview_on", "preview"),
    "preview, coreset off": ("preview_off", "preview"),
    "decode": ("decode", "decode"),
    "prefill": ("prefill", "prefill"),
}
Report = Mapping[str, Any]


def page() -> str:
    """Return the whole README with its tables made anew."""
    before, rest = TARGET.read_text(encoding="utf-8").split(START)
    after = rest.split(END, 1)[1]
    return before + "\n".join([START, *tables(RESULTS), "", END]) + after


def tables(results: Path) -> Iterator[str]:
    """Yield the lines of the tables that there are results for."""
    yield from passes_table(json.loads((results / PASSES).read_text())["reports"])
    if (results / PEER).exists():
        yield ""
        yield from peer_table(json.loads((results / PEER).read_text()))


def passes_table(reports: Sequence[Report]) -> Iterator[str]:
    """Yield a table of passes: a column a checkpoint, medians over the rounds of a run."""
    models: dict[str, list[Report]] = {}
    for report in reports:
        models.setdefault(report["settings"]["model"], []).append(report)
    first = reports[0]
    s = first["settings"]
    bandwidths = [r["bandwidth"]["gb_per_s"] for r in reports]
    yield wrapped(
        f"Passes of four layers of the release's geometry with random weights, on "
        f"{machine(first)}, memory read at {span(bandwidths, '.0f')} GB/s in the same run; "
        f"precision `{s['precision']}`, prompt of {s['prompt']} tokens, medians of {s['repeats']} "
        f"passes in each of {len(models[s['model']])} rounds:"
    )
    yield ""
    names = [name.rsplit("-", 1)[-1] for name in models]
    yield f"| | {' | '.join(names)} |"
    yield f"| --- |{' --- |' * len(names)}"
    for kind, told in KINDS.items():
        found = [[r["results"][0][kind] for r in own] for own in models.values()]
        used = [n for own in found for one in own for n in one["distinct_experts_by_layer"]]
        cells = [f"{median(one['ms_median'] for one in own):.1f} ms" for own in found]
        yield f"| {told}, {span(used, 'd')} experts a layer | {' | '.join(cells)} |"
    chunk = s["chunk"]
    rates = [median(prefill(r, chunk) for r in own) for own in models.values()]
    cells = [f"{rate:.0f} tokens/s" for rate in rates]
    yield f"| prefill of {chunk} tokens | {' | '.join(cells)} |"
    peaks = [max(r["peak_gb"] for r in own) for own in models.values()]
    yield f"| memory at most | {' | '.join(f'{gb:.1f} GB' for gb in peaks)} |"


def prefill(report: Report, chunk: int) -> float:
    """Return the tokens a second of the depth that was reached by one whole chunk."""
    whole = (r["prefill"] for r in report["results"] if r["prefill"]["tokens"] == chunk)
    return float(next(whole)["tokens_per_s"])


def peer_table(report: Report) -> Iterator[str]:
    """Yield a table a peer: time of ours over the peer's, by row and format."""
    s, results = report["settings"], report["results"]
    peers = list(next(iter(results.values()))["peers"])
    for peer in peers:
        about = next(iter(results.values()))["peers"][peer]
        yield wrapped(
            f"Time over that of llama.cpp (build {about['build_number']}, {peer}), which has no "
            f"preview: against its batch of {s['rows']} tokens, one-token step and prefill of "
            f"{s['prefill']} tokens, Q4_0 for q4 and Q8_0 for q8. On {machine(report)}, "
            f"{s['threads']} threads, interleaved, medians of {s['rounds']} rounds; below 1 is "
            "faster:"
        )
        yield ""
        yield f"| | {' | '.join(results)} |"
        yield f"| --- |{' --- |' * len(results)}"
        own = [r["name"] for r in next(iter(results.values()))["rows"] if r["peer"] in (peer, "")]
        for name in own:
            cells = [peer_cell(found, name, peer) for found in results.values()]
            yield f"| {ROWS.get(name, name).format(**s)} | {' | '.join(cells)} |"
        if peer != peers[-1]:
            yield ""
    yield from cache_note(results)


def cache_note(results: Mapping[str, Report]) -> Iterator[str]:
    """Yield why a decode may read faster than memory: part of its weights stays in the cache."""
    read = [found["cache"]["decode_weights_mb"] for found in results.values()]
    cache = max(found["cache"]["last_level_cache_mb"] for found in results.values())
    if any(mb < 2 * cache for mb in read):
        yield ""
        yield wrapped(
            f"A decode of four layers reads {span(read, '.0f')} MB of weights, and the last-level "
            f"cache has {cache:.0f} MB: what stays there from one token to the next is read faster "
            "than memory."
        )


ROWS = {
    "what the depth adds": "what {depth} tokens before it add to a preview",
    "decode, share of the bandwidth": "weights read by a decode, over its time and the bandwidth",
    "MB above the files": "memory of `run` beyond the checkpoint's files",
}


def peer_cell(found: Report, name: str, peer: str) -> str:
    """Return a figure as text; one that was not measured as it should be says so."""
    row = next(r for r in found["rows"] if r["name"] == name and r["peer"] in (peer, ""))
    if not row["counts"]:
        return "does not count"
    if name == "MB above the files":
        return f"{row['value']:.0f} MB"
    if not row["peer"]:
        return f"{row['value']:.0%}"
    if name not in PARTS:
        return f"{row['value']:.2f}"
    ours, theirs = PARTS[name]
    ms = found["ours_ms"][ours]["median"], found["peers"][peer]["ms"][theirs]["median"]
    return f"{row['value']:.2f} ({ms[0]:.1f} of {ms[1]:.1f} ms)"


def wrapped(text: str) -> str:
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def machine(report: Report) -> str:
    return f"{report['cpu']} with {report['cores']} cores"


def median(values: Iterator[float]) -> float:
    return statistics.median(list(values))


def span(values: Sequence[float], form: str) -> str:
    """Return one number, or two with `to` between them."""
    low, high = format(min(values), form), format(max(values), form)
    return low if low == high else f"{low} to {high}"


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
