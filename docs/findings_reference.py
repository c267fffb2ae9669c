"""Write docs/findings.md from the table of findings itself: python docs/findings_reference.py"""

from __future__ import annotations

from pathlib import Path

from clover_rt.doctor.findings import CODES, Severity

TARGET = Path(__file__).with_name("findings.md")
INTRO = """\
`clover-rt doctor` looks at the processor, graphics cards, drivers, libraries and backends, runs
real kernels and the built-in model on every device, and reports findings. Each has a code,
evidence (the paths and values that were read) and a remedy. What a remedy here has in braces,
doctor fills in.

The exit code is 0 where a backend works, 1 where it works but there are warnings or errors or its
device must be named, and 2 where no requested backend works. `--report FILE` writes everything to
attach to an issue; names of user, host and home folder are left out.
"""
SEVERITIES = {
    Severity.ERROR: "something that was meant to work does not",
    Severity.WARNING: "it works worse than it could",
    Severity.INFO: "worth knowing; nothing to do",
}


def page() -> str:
    """Return the whole page as Markdown: a table, then one section a code, to link to."""
    lines = ["# Findings of doctor", "", INTRO]
    lines += [f"- **{s.value}**: {text}" for s, text in SEVERITIES.items()]
    lines += ["", "| code | severity | what |", "| --- | --- | --- |"]
    for code in CODES.values():
        anchor = code.code.lower()
        lines.append(f"| [{code.code}](#{anchor}) | {code.severity.value} | {code.what} |")
    for code in CODES.values():
        lines += ["", f"## {code.code}", "", f"{code.severity.value}: {code.what}.", ""]
        lines.append(f"What to do: {code.remedy}.")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
