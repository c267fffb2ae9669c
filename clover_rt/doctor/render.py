"""The report as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from clover_rt.doctor.findings import DOCS

Report = Mapping[str, Any]
LABEL = 12


def render(report: Report) -> str:
    """Return the report of `doctor.examine` for a reader: what is here, findings, verdict."""
    lines = [f"clover-rt {report['version']}, doctor", ""]
    for part in (_system, _cpu, _gpus, _opencl, _vulkan, _software, _storage, _backends, _tests):
        lines += part(report)
    lines.append("")
    lines += _findings(report)
    lines += ["", f"{report['verdict']} (exit code {report['exit_code']})"]
    return "\n".join(lines)


def _row(label: str, *facts: str) -> str:
    return f"{label:{LABEL}}" + ", ".join(f for f in facts if f)


def _gb(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB"


def _size(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):.0f} MiB"


def _system(report: Report) -> Iterator[str]:
    s = report["system"]
    kernel = f"{s.get('system', '')} {s.get('kernel', '')} {s.get('machine', '')}".strip()
    yield _row("system", s.get("distribution", ""), kernel, f"Python {s.get('python', '')}")
    if s["container"]:
        yield _row("", f"signs of a container: {s['container']}")
    if s["is_wsl"]:
        yield _row("", "under WSL")
    if s["user_namespace"]:
        yield _row("", f"in a user namespace: ids {s['user_namespace']}")
    for name, value in report["variables"].items():
        yield _row("variable", f"{name}={value}")


def _cpu(report: Report) -> Iterator[str]:
    c, m = report["cpu"], report["memory"]
    if "model" in c:
        cores = f"{c['cores']} processors"
        if c["usable_cores"] != c["cores"]:
            cores += f" ({c['usable_cores']} usable)"
        quota = "" if c["quota_cores"] is None else f"quota of {c['quota_cores']:.3g}"
        cache = c["last_level_cache_bytes"]
        yield _row("cpu", c["model"], cores, quota, f"{_size(cache)} cache" if cache else "")
        yield _row("", f"features: {' '.join(c['features']) or 'none of interest'}")
    limit = "" if m["limit"] is None else f"limit {_gb(m['limit'])}"
    yield _row("memory", _gb(m["total"]), f"{_gb(m['available'])} available", limit)
    if "read_gb_per_s" in m:
        size = f"{m['read_bytes'] / 1e6:.0f} MB by {m['read_threads']} threads"
        yield _row("", f"read at {m['read_gb_per_s']:.1f} GB/s ({size})")
    elif "read_note" in m:
        yield _row("", m["read_note"])


def _gpus(report: Report) -> Iterator[str]:
    if not report["gpus"]:
        yield _row("gpu", "none on the PCI bus or seen by any API")
    for g in report["gpus"]:
        memory = ""
        if g["memory_total"]:
            free = f", {_gb(g['memory_free'])} free" if g["memory_free"] else ""
            memory = _gb(g["memory_total"]) + free
        kind = "" if g["kind"] == "unknown" else g["kind"]
        driver = f"driver {g['driver']}" if g["driver"] else "no driver"
        yield _row("gpu", g["id"], g["name"], kind, g["arch"], memory, driver)
        hidden = f"hidden by {', '.join(g['hidden_by'])}" if g["hidden_by"] else ""
        yield _row("", f"seen by {', '.join(g['seen_by'])}", hidden)
    for key in ("amd", "nvidia"):
        for node in report[key]["nodes"]:
            state = node["problem"] or "opens"
            owner = f"mode {node['mode']}, uid {node['uid']}, gid {node['gid']}"
            yield _row("node", node["path"], owner, state)


def _opencl(report: Report) -> Iterator[str]:
    o = report["opencl"]
    yield _row("opencl", f"loader {o['loader']}" if o["loader"] else "no loader", _icds(o["icds"]))
    for platform in o["platforms"]:
        if not platform["devices"]:
            yield _row("", f"{platform['name']}: no devices")
        for d in platform["devices"]:
            names = ("fp16", "subgroups", "integer_dot")
            has = " ".join(n for n in names if d[n]) or "no fp16, subgroups or integer dot"
            yield _row("", f"{platform['name']}: {d['name']}", d["kind"], _gb(d["memory"]), has)


def _vulkan(report: Report) -> Iterator[str]:
    v = report["vulkan"]
    yield _row("vulkan", f"loader {v['loader']}" if v["loader"] else "no loader", _icds(v["icds"]))
    for d in v["devices"]:
        driver = f"{d.get('driver', '')} {d.get('driver_version', '')}".strip()
        yield _row("", d["name"], d["kind"], f"Vulkan {d['api']}", driver)
        names = ("fp16", "int8", "storage_16bit", "storage_8bit", "integer_dot")
        yield _row(
            "",
            f"storage range {_size(d['max_storage_buffer_range'])}",
            f"shared {d['max_shared_memory'] >> 10} KiB",
            f"work-group {d['max_workgroup_invocations']}",
            f"subgroup {d.get('subgroup_size', 0)} {d.get('subgroup_sizes', '')}".strip(),
            " ".join(n for n in names if d.get(n)),
        )


def _icds(icds: Any) -> str:
    return f"drivers {', '.join(icds)}" if icds else "no drivers registered"


def _software(report: Report) -> Iterator[str]:
    for name in ("torch", "triton"):
        found = report[name]
        if found is None:
            version = report["system"]["packages"].get(name)
            yield _row(name, f"{version}, gave no answer" if version else "not installed")
        elif name == "torch":
            built = f"ROCm {found['hip']}" if found["hip"] else f"CUDA {found['cuda']}"
            arch = " ".join(found["arch_list"])
            no_gpu = not found["hip"] and not found["cuda"]
            yield _row(name, found["version"], "CPU only" if no_gpu else f"{built} for {arch}")
        else:
            yield _row(name, found["version"], f"backends {' '.join(found['backends'])}")


def _storage(report: Report) -> Iterator[str]:
    for row in report["storage"]:
        state = "writable" if row["is_writable"] else "cannot be written to"
        free = f"{_gb(row['free'])} of {_gb(row['total'])} free" if row["total"] else ""
        yield _row("cache" if row["use"] != "TMPDIR" else "temporary", row["path"], state, free)


def _backends(report: Report) -> Iterator[str]:
    if not report["backends"]:
        yield _row("backend", "none is installed")
    for b in report["backends"]:
        reason = b["reason"].splitlines()[0] if b["reason"] else ""
        yield _row("backend", b["name"], b["status"], b["version"], reason)
        for d in b["devices"]:
            memory = _gb(d["memory_bytes"]) if d["memory_bytes"] else ""
            engine = f"engine {d['notes']['engine']}" if "engine" in d["notes"] else ""
            # the first clause: `backends` and the findings have the rest
            reason = d["only_by_name"].partition(";")[0]
            why = f"only by name: {reason}" if reason else ""
            why = why or d["notes"].get("chosen", "")
            yield _row("", f"device {d['id']}: {d['name']}", memory, engine, why)


def _tests(report: Report) -> Iterator[str]:
    for row in report["tests"]:
        where = f"{row['backend']} ({row['device']})"
        if row.get("tried_alone"):
            yield _row("test", where, f"{row['tried_alone']} trials, each alone")
        if "kernels" in row:
            ops = row["kernels"]["ops"]
            right = sum(op["right"] for op in ops)
            wrong = sum(len(op["wrong"]) for op in ops)
            refused = sum(len(op["refused"]) for op in ops)
            cases = f"{right} cases of {len(ops)} operations agree with the reference"
            table = (row["kernels"].get("tuning") or {}).get("table", "")
            yield _row(
                "test",
                where,
                cases,
                f"tuning table {table}" if table else "",
                f"{wrong} do not" if wrong else "",
                f"{refused} refused" if refused else "",
                f"without kernels: {' '.join(row['kernels']['declined'])}"
                if row["kernels"]["declined"]
                else "",
            )
        if "model" in row:
            m = row["model"]
            speed = f"{m['tokens_per_s']:.0f} tokens/s" if m["tokens_per_s"] else ""
            text = " ".join(m["text"].split())
            yield _row(
                "test",
                where,
                f"built-in model, {m['mode']}",
                f"{len(m['tokens'])} tokens",
                speed,
                ", ".join(f"{n} {name}" for name, n in m.get("tally", {}).items()),
                repr(text),
            )
        for problem in row.get("problems", ())[:3]:
            yield _row("", problem)


def _findings(report: Report) -> Iterator[str]:
    if not report["findings"]:
        yield "no findings"
    for f in report["findings"]:
        yield f"{f['severity']:8s} {f['code']}  {f['what']}"
        yield f"  found: {f['evidence']}"
        yield f"  fix:   {f['remedy']}"
    if report["findings"]:
        yield f"every finding is explained in {DOCS}"
