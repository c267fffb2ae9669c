"""Device nodes: do they open, and if not, is it the group, the namespace or the container."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from clover_rt.doctor.findings import Finding, finding
from clover_rt.doctor.host import Host, Node
from clover_rt.doctor.system import container, has_group

GROUP_RW = 0o060


def as_dict(node: Node) -> dict[str, Any]:
    return {
        "path": node.path,
        "mode": f"{node.mode:04o}",
        "uid": node.uid,
        "gid": node.gid,
        "problem": node.problem,
    }


def judge(host: Host, nodes: Sequence[Node]) -> Iterator[Finding]:
    """Return why nodes do not open, one finding for all nodes with the same reason."""
    reasons: dict[tuple[str, int], list[Node]] = {}
    for node in nodes:
        if node.problem:
            key = (_code(host, node), node.gid)
            reasons.setdefault(key, []).append(node)
    for (code, gid), shut in reasons.items():
        name = host.group(gid)
        group = f"gid {gid}" + (f" ({name})" if name else "")
        seen = ", ".join(f"{n.path} mode {n.mode:04o}: {n.problem}" for n in shut)
        ours = ", ".join(map(str, sorted(host.gids)))
        evidence = f"{seen}; owner {group}; our gids: {ours}"
        if code == "CRT-5104":
            join = f"sudo usermod -aG {name} $USER"
            if not name:
                join = f"sudo groupadd -g {gid} gpu; sudo usermod -aG gpu $USER"
            if container(host):
                join = f"start the container with --group-add {gid}"
            yield finding(code, evidence, command=join)
        else:
            yield finding(code, evidence, path=shut[0].path)


def _code(host: Host, node: Node) -> str:
    if not has_group(host, node.gid):
        return "CRT-5105"
    can = node.mode & GROUP_RW == GROUP_RW
    return "CRT-5104" if can and node.gid not in host.gids else "CRT-5106"
