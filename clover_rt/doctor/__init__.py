"""doctor: can this machine run Clover, on what, and what to fix.

`host`      the machine as the probes see it: a folder and a few functions
`report`    probes -> one dict, with findings and the exit code; cannot raise
`render`    the dict as text
`findings`  the table of everything that can be found
`child`     questions to libraries that may crash or hang, asked in a process of their own
The others are one probe each.
"""

from clover_rt.doctor.host import Host
from clover_rt.doctor.render import render
from clover_rt.doctor.report import examine

__all__ = ["Host", "examine", "render"]
