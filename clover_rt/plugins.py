"""Finding backends and opening devices; a broken plugin becomes a finding and stops no other.

Plugins are entry points of the group `clover_rt.backends`. Importing this module imports none of
them. Two environment variables: CLOVER_RT_LOAD_PLUGINS, a comma list of the entry points to load
(empty: none), and CLOVER_RT_STRICT_PLUGINS=1, which raises the first finding.
"""

from __future__ import annotations

import difflib
import os
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib import metadata
from typing import Any

import pluggy

from clover_rt import hookspecs
from clover_rt.backend import API, Backend, Device, DeviceInfo, Kernel, Probe
from clover_rt.errors import BackendUnavailable, CloverError
from clover_rt.hookspecs import GROUP

LOAD = "CLOVER_RT_LOAD_PLUGINS"
STRICT = "CLOVER_RT_STRICT_PLUGINS"
OURS = "CLOVER_RT_"
"""How the names of all variables of clover-rt and its backends begin."""
PROBE_BROKE = "CRT-3010"


class Stage(Enum):
    """Where a plugin failed."""

    IMPORT = "import"
    REGISTER = "register"
    HOOK = "hook"
    VERSION = "version"
    NAME = "name"
    PROBE = "probe"


@dataclass(frozen=True, slots=True)
class Finding:
    """Why a plugin, or a backend of it, is not usable.

    backend  the backend's name, "" where the whole plugin failed
    trace    empty where nothing raised
    """

    code: str
    plugin: str
    stage: Stage
    what: str
    evidence: str
    fix: str
    trace: str = ""
    backend: str = ""

    @property
    def name(self) -> str:
        return self.backend or self.plugin

    def error(self) -> BackendUnavailable:
        """Return the finding as an error, its trace at the end of the evidence."""
        evidence = f"{self.evidence}\n{self.trace}".rstrip()
        return BackendUnavailable(self.what, evidence, self.fix, self.code)


@dataclass(frozen=True, slots=True)
class Registered:
    """A backend that was found: the plugin (entry point) it came from and that one's version."""

    backend: Backend
    plugin: str
    version: str


@dataclass(frozen=True, slots=True)
class Found:
    """What discovery found: backends by name, and what went wrong."""

    backends: Mapping[str, Registered]
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class Status:
    """One line of `clover-rt backends`: status is usable, unusable or refused."""

    name: str
    plugin: str
    version: str
    api: str
    status: str
    reason: str
    fix: str = ""
    trace: str = ""
    devices: tuple[DeviceInfo, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return {
            "name": self.name,
            "status": self.status,
            "plugin": self.plugin,
            "version": self.version,
            "api": self.api,
            "reason": self.reason,
            "fix": self.fix,
            "trace": self.trace,
            "devices": [
                {
                    "id": d.id,
                    "name": d.name,
                    "kind": d.kind,
                    "memory_bytes": d.memory_bytes,
                    "is_software": d.is_software,
                    "only_by_name": d.only_by_name,
                    "notes": dict(d.notes),
                }
                for d in self.devices
            ],
        }

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Status:
        """Return what `as_dict` has told."""
        devices = tuple(DeviceInfo(**d) for d in told["devices"])
        return cls(**{**told, "devices": devices})


def discover(
    entry_points: Iterable[metadata.EntryPoint] | None = None,
    environ: Mapping[str, str] | None = None,
    only: str | None = None,
) -> Found:
    """Load the plugins one at a time and return their backends and findings.

    entry_points  instead of the installed ones
    environ       instead of os.environ
    only          load just the entry points of this name
    Where two backends have one name, the one whose entry point has that name too is kept, else the
    first in order of entry point and module.
    Raises BackendUnavailable for the first finding under CLOVER_RT_STRICT_PLUGINS=1.
    """
    environ = os.environ if environ is None else environ
    points = metadata.entry_points(group=GROUP) if entry_points is None else entry_points
    ordered = sorted(points, key=lambda p: (p.name, p.value))
    wanted = environ.get(LOAD)
    findings: list[Finding] = []
    if wanted is not None:
        names = {n.strip() for n in wanted.split(",")} - {""}
        findings += [unlisted(n, ordered) for n in sorted(names - {p.name for p in ordered})]
        ordered = [p for p in ordered if p.name in names]
    if only is not None:
        ordered = [p for p in ordered if p.name == only]
    loaded: list[Registered] = []
    for point in ordered:
        result = load_plugin(point)
        if isinstance(result, Finding):
            findings.append(result)
            continue
        for item in result:
            refusal = check_version(item)
            if refusal is None:
                loaded.append(item)
            else:
                findings.append(refusal)
    # a stable sort: entry points named like their backend come first and keep the name
    loaded.sort(key=lambda r: r.plugin != r.backend.name)
    backends: dict[str, Registered] = {}
    for item in loaded:
        kept = backends.setdefault(item.backend.name, item)
        if kept is not item:
            findings.append(duplicate(item, kept))
    if findings and environ.get(STRICT) == "1":
        raise findings[0].error()
    return Found(backends, tuple(findings))


def open_device(
    name: str,
    device: str | None = None,
    *,
    entry_points: Iterable[metadata.EntryPoint] | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[Backend, Device]:
    """Open a device of a backend, and never of another.

    device  id or name of a device; None takes the backend's first that may be chosen by itself
    Raises BackendUnavailable: CRT-3001 no such backend, CRT-3002 unusable here, CRT-3003 no such
    device, CRT-3004 none is chosen by itself, CRT-3005 its `open` raised, CRT-3010 its probe
    raised, CRT-3011 what it opened is no device; CloverError as it is.
    """
    points = None if entry_points is None else list(entry_points)
    # first only the entry point of that name, so that a run on one backend loads no other
    found = discover(points, environ, only=name)
    if name not in found.backends:
        found = discover(points, environ)
    if name not in found.backends:
        raise unknown_backend(name, found)
    item = found.backends[name]
    result = probe(item)
    if isinstance(result, Finding):
        raise result.error()
    info = choose(name, result, device)
    origin = f"plugin {item.plugin!r} {item.version}".rstrip()
    what = f"backend {name!r} could not open device {info.id!r}"
    fix = "report it to the plugin's authors with the trace that CLOVER_RT_DEBUG=1 shows"
    try:
        opened: object = item.backend.open(info)
    except CloverError:
        raise
    # whatever a plugin raises is told as the plugin's; SystemExit must not end the program
    except (Exception, SystemExit) as error:
        evidence = f"{origin}: {type(error).__name__}: {error}"
        raise BackendUnavailable(what, evidence, fix, "CRT-3005") from error
    problem = malformed_device(opened)
    if problem:
        raise BackendUnavailable(what, f"{origin}: {problem}", fix, "CRT-3011")
    assert isinstance(opened, Device)
    opened.origin = origin
    opened.info = info
    return item.backend, opened


def survey(found: Found | None = None, environ: Mapping[str, str] | None = None) -> list[Status]:
    """Return one status per backend and per refused plugin; probes each backend.

    Raises nothing but, under CLOVER_RT_STRICT_PLUGINS=1, the first finding as BackendUnavailable.
    """
    environ = os.environ if environ is None else environ
    found = discover(environ=environ) if found is None else found
    if environ.get(STRICT) == "1":
        for item in found.backends.values():
            result = probe(item)
            if isinstance(result, Finding) and result.code == PROBE_BROKE:
                raise result.error()
    rows = [status(item) for _, item in sorted(found.backends.items())]
    for f in found.findings:
        reason = f"{f.what}: {f.evidence}"
        rows.append(Status(f.name, f.plugin, "", "", "refused", reason, f.fix, f.trace))
    return rows


def status(item: Registered) -> Status:
    """Return what a backend's probe says of this machine."""
    about = (item.backend.name, item.plugin, item.version, version_text(item.backend.api))
    result = probe(item)
    if isinstance(result, Finding):
        return Status(*about, "unusable", result.evidence, result.fix, result.trace)
    return Status(*about, "usable", "", devices=result.devices)


def probe(item: Registered) -> Probe | Finding:
    """Return a probe with devices, or why there is none."""
    name = item.backend.name
    what = f"backend {name!r} was requested"
    try:
        result: Any = item.backend.probe()
        problem = "" if isinstance(result, Probe) else f"its probe returned {result!r}, not a Probe"
        trace = ""
    # a probe must not raise; one that does is a finding like any other failure of a plugin
    except (Exception, SystemExit) as error:
        problem = f"its probe raised {type(error).__name__}: {error}"
        trace = traceback.format_exc()
    if problem:
        fix = f"report it to the authors of plugin {item.plugin!r}"
        return Finding(PROBE_BROKE, item.plugin, Stage.PROBE, what, problem, fix, trace, name)
    if result.problem or not result.devices:
        problem = result.problem or "it found no device"
        fix = result.fix or "use another backend: `clover-rt backends` lists them"
        return Finding("CRT-3002", item.plugin, Stage.PROBE, what, problem, fix, backend=name)
    good: Probe = result
    return good


def choose(backend: str, found: Probe, wanted: str | None) -> DeviceInfo:
    """Return the device that was asked for, or the first that is chosen by itself.

    Raises BackendUnavailable: CRT-3003 no or several such devices, CRT-3004 none is chosen by
    itself.
    """
    if wanted is None:
        able = [d for d in found.devices if not only_by_name(d)]
        if able:
            return able[0]
        reasons = "; ".join(f"{d.id} ({d.name}): {only_by_name(d)}" for d in found.devices)
        raise BackendUnavailable(
            what=f"backend {backend!r} was requested",
            evidence=f"it has no device that is chosen by itself: {reasons}",
            fix=f"name one to use it: --device {found.devices[0].id}",
            code="CRT-3004",
        )
    exact = [d for d in found.devices if d.id == wanted]
    named = exact or [d for d in found.devices if d.name.casefold() == wanted.casefold()]
    if len(named) != 1:
        raise BackendUnavailable(
            what=f"device {wanted!r} of backend {backend!r} was requested",
            evidence=f"{len(named)} devices match; devices: {_listed(found.devices)}",
            fix="use the id of one of these devices; `clover-rt backends` lists those of all "
            "backends",
            code="CRT-3003",
        )
    return named[0]


def _listed(devices: Sequence[DeviceInfo]) -> str:
    """Return devices, each with why it is chosen or not, which has what is missing for others."""
    told = []
    for d in devices:
        reason = " ".join((only_by_name(d) or d.notes.get("chosen", "")).split())
        told.append(f"{d.id} ({d.name})" + (f": {reason}" if reason else ""))
    return "; ".join(told)


def only_by_name(info: DeviceInfo) -> str:
    """Return why a device is opened only by its name; "" for one that is chosen by itself."""
    return info.only_by_name or ("a software device" if info.is_software else "")


def load_plugin(point: metadata.EntryPoint) -> list[Registered] | Finding:
    """Import one plugin and ask its hook; a failure leaves nothing of it behind."""
    # a manager of its own: a registration that fails half-way is dropped with it
    manager = pluggy.PluginManager("clover_rt")
    manager.add_hookspecs(hookspecs)
    stage = Stage.IMPORT
    try:
        module = point.load()
        stage = Stage.REGISTER
        manager.register(module, name=point.name)
        manager.check_pending()
        stage = Stage.HOOK
        answers = manager.hook.clover_rt_backends()
        backends = [b for answer in answers for b in answer]
        problem = "" if answers else "it implements no hook `clover_rt_backends`"
        for b in backends:
            problem = problem or malformed(b)
        trace = ""
    # SystemExit too: a plugin must not end the program
    except (Exception, SystemExit) as error:
        problem = f"{type(error).__name__}: {error}"
        trace = traceback.format_exc()
    if problem:
        return Finding(
            "CRT-3006",
            point.name,
            stage,
            f"plugin {point.name!r} ({point.value}) failed at {stage.value}",
            problem,
            f"update or uninstall it, or leave it out with {LOAD}",
            trace,
        )
    version = point.dist.version if point.dist is not None else ""
    return [Registered(b, point.name, version) for b in backends]


def malformed(backend: object) -> str:
    """Return "" for a Backend with a name and an API version, else what is wrong with it."""
    if not isinstance(backend, Backend):
        return f"its hook returned {backend!r}, not a clover_rt.backend.Backend"
    if not isinstance(getattr(backend, "name", None), str):
        return f"backend {type(backend).__name__} has no name"
    api: Any = getattr(backend, "api", None)
    match api:
        case (int(), int()):
            return ""
        case _:
            return f"backend {backend.name!r} has api {api!r}, not (major, minor)"


def malformed_device(device: object) -> str:
    """Return "" for a Device with a name and kernels, else what is wrong with it."""
    if not isinstance(device, Device):
        return f"`open` returned {device!r}, not a clover_rt.backend.Device"
    if not isinstance(getattr(device, "name", None), str):
        return f"device {type(device).__name__} has no name"
    kernels: Any = getattr(device, "kernels", None)
    if not isinstance(kernels, Mapping):
        return f"device {device.name!r} has no kernels: a dict of op name to Kernel is needed"
    wrong = [op for op, kernel in kernels.items() if not isinstance(kernel, Kernel)]
    if wrong:
        return f"kernel {wrong[0]!r} of device {device.name!r} is not a clover_rt.backend.Kernel"
    return ""


def check_version(item: Registered) -> Finding | None:
    """Return a finding unless the plugin was built for this major version and no newer minor."""
    major, minor = item.backend.api
    if major == API[0] and minor <= API[1]:
        return None
    older = (major, minor) < API
    return Finding(
        "CRT-3007",
        item.plugin,
        Stage.VERSION,
        f"backend {item.backend.name!r} was built for another version of clover-rt's plugin API",
        f"it was built for API {version_text((major, minor))}; this clover-rt has "
        f"{version_text(API)} and takes {API[0]}.0 to {version_text(API)}",
        f"update plugin {item.plugin!r}" if older else "update clover-rt",
        backend=item.backend.name,
    )


def duplicate(item: Registered, kept: Registered) -> Finding:
    """Return the finding for a second backend of one name."""
    return Finding(
        "CRT-3008",
        item.plugin,
        Stage.NAME,
        f"two plugins register a backend {item.backend.name!r}",
        f"plugin {kept.plugin!r} has it; plugin {item.plugin!r} is left out",
        f"uninstall one of them, or leave one out with {LOAD}",
        backend=item.backend.name,
    )


def unlisted(name: str, points: Iterable[metadata.EntryPoint]) -> Finding:
    """Return the finding for a name in CLOVER_RT_LOAD_PLUGINS that no entry point has."""
    known = ", ".join(dict.fromkeys(p.name for p in points)) or "none"
    return Finding(
        "CRT-3009",
        name,
        Stage.IMPORT,
        f"{LOAD} names plugin {name!r}",
        f"installed plugins: {known}",
        f"install it, or correct {LOAD}",
    )


def unknown_backend(name: str, found: Found) -> BackendUnavailable:
    """Return the error for a backend that is not there: what is, the nearest, and findings."""
    own = [f for f in found.findings if name in (f.backend, f.plugin)]
    if own:
        return own[0].error()
    known = sorted(found.backends)
    near = difflib.get_close_matches(name, known, n=1)
    evidence = f"known backends: {', '.join(known) or 'none'}"
    if found.findings:
        evidence += f"; plugins that failed: {', '.join(f.plugin for f in found.findings)}"
    hint = f"did you mean {near[0]!r}? " if near else ""
    return BackendUnavailable(
        what=f"backend {name!r} was requested",
        evidence=evidence,
        fix=f"{hint}`clover-rt backends` lists them with their status",
        code="CRT-3001",
    )


def own_variables() -> dict[str, str]:
    """Return the variables of clover-rt that are set, by name: they may decide what runs."""
    return {name: os.environ[name] for name in sorted(os.environ) if name.startswith(OURS)}


def version_text(api: tuple[int, int]) -> str:
    """Return an API version as people write it."""
    return f"{api[0]}.{api[1]}"
