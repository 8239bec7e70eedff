# SPDX-License-Identifier: Apache-2.0
"""docs/check.md, the table of all checks of `harpctl check` (`make docs` writes it)."""

from harp.doctor import examine
from harp.doctor.finding import CHECKS

HEAD = """\
<!-- Generated from harp/doctor by `make docs`; a test compares. -->
# The checks of `harpctl check`

`harpctl check` examines the host and every interface that is up and has an address;
`harpctl check eth1` examines one. It attaches nothing and changes nothing. A DPDK port of harp.toml
(`harpctl check dpdk:NAME`), or of a specification (`harpctl check 'dpdk:net_tap0;mtu=9000'`), is
opened in a process of its own and closed again, since only its driver knows its properties. A port
that harpd leased is not opened; the counters come from its holder's statistics page.

The verdict comes first, then the findings that are not ok, with remedies; `--verbose` shows all.

Exit code 0: HARP works; 5: it works, and something costs performance; 1: it can't work; 4: the
interface does not exist. Without an interface, the exit code is the worst of the host's findings
and of the best interface's.

`-o json` prints one document: `severity` (`ok`, `warn` for costs performance, `fail`
for can't work), `verdict`, and `findings`, each with `name`, `severity`, `text` and `remedy`.
Without an interface the findings are in `host` and in each of `interfaces`.

If harpd leases queues of an interface to this user, findings that only matter to a process that
opens them itself (capabilities, locked memory, harpd's own XDP program) are ok.
"""


def table() -> str:
    """Return the whole document."""
    assert examine.CHECK_MODULES
    parts = [HEAD]
    for scopes, title in (
        (("host",), "The host"),
        (("interface",), "An interface"),
        (("port", "opened", "used"), "A DPDK port"),
    ):
        parts.append(f"\n## {title}\n\n| name | examines | why |\n|---|---|---|\n")
        for check in sorted(CHECKS, key=lambda each: each.scope in ("opened", "used")):
            if check.scope in scopes:
                parts.append(f"| `{check.name}` | {check.looks_at} | {check.why} |\n")
    return "".join(parts)
