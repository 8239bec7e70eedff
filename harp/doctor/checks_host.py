# SPDX-License-Identifier: Apache-2.0
"""The host: processors, clock, container limits, BPF, harpd."""

import errno
import filecmp
from pathlib import Path

from harp import _conflict, _paths
from harp.config import ConfigError
from harp.doctor.finding import Answer, check, fail, ok, warn
from harp.doctor.view import CAP_NET_RAW, View
from harp.errors import HarpError
from harp.install import DEFAULT_NAME
from harp.nicprep import ranges

_SHM_SMALL = 256 << 20
_PIDS_SMALL = 256
_IDLE_SLOW_US = 50
# The vDSO reads these without a system call; reading another one takes 100 ns to 1 us.
_CLOCKS_FAST = ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "timebase")


@check("processors", "host")
def _processors(view: View) -> Answer:
    """How many processors this process may use (affinity, cpuset): a polling thread and the
    application need one each.
    """
    allowed = view.host.processors()
    online = view.host.numbers(view.host.sys / "devices/system/cpu/online")
    text = f"{ranges.text(allowed)}" + (f" of {ranges.text(online)}" if online - allowed else "")
    base = view.host.sys / "devices/system/cpu"
    cores = {
        frozenset(view.host.numbers(base / f"cpu{cpu}/topology/thread_siblings_list") or {cpu})
        for cpu in allowed
    }
    if len(cores) > 1:
        return ok(text)
    if len(allowed) > 1:
        return warn(
            f"the threads of one core ({text}): HARP and the application share it",
            "give the job two cores (docker --cpuset-cpus, taskset)",
        )
    return warn(
        f"one only ({text}): HARP and the application take turns",
        "give the job two or more (docker --cpuset-cpus, taskset)",
    )


@check("cpu-quota", "host")
def _cpu_quota(view: View) -> Answer:
    """The cgroup's CPU bandwidth (cpu.max, cfs_quota): a thread that polls is stopped for the rest
    of each period.
    """
    quota = cpu_quota(view)
    if quota is None:
        return ok("no limit")
    allowed = len(view.host.processors())
    if quota >= allowed:
        return ok(f"{quota:g} processors, {allowed} are usable")
    return warn(
        f"{quota:g} processors of time on {allowed}: polling threads are stopped when it is spent",
        "limit by cpuset instead (docker --cpuset-cpus; Kubernetes: the static CPU manager)",
    )


@check("cpu-governor", "host")
def _governor(view: View) -> Answer:
    """scaling_governor of the usable processors: a processor with a lower clock wakes late."""
    slow: dict[str, list[int]] = {}
    has_governor = False
    for cpu in sorted(view.host.processors()):
        path = view.host.sys / f"devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor"
        governor = view.host.read(path)
        has_governor = has_governor or governor is not None
        if governor not in (None, "performance"):
            slow.setdefault(str(governor), []).append(cpu)
    if not has_governor:
        return ok("the machine offers no choice (usually a virtual machine)")
    if not slow:
        return ok("performance")
    text = "; ".join(f"{name} on {ranges.text(cpus)}" for name, cpus in sorted(slow.items()))
    return warn(text, "cpupower frequency-set -g performance")


@check("cpu-idle", "host")
def _idle(view: View) -> Answer:
    """How long the processors need to leave their deepest idle state: a sleeping thread wakes that
    much later.
    """
    worst, worst_name = 0, ""
    for cpu in sorted(view.host.processors()):
        folder = view.host.sys / f"devices/system/cpu/cpu{cpu}/cpuidle"
        for state in view.host.names(folder):
            latency = view.host.number(folder / state / "latency") or 0
            if latency > worst and view.host.number(folder / state / "disable") == 0:
                worst, worst_name = latency, view.host.read(folder / state / "name") or state
    if worst > _IDLE_SLOW_US:
        return warn(
            f"{worst} us from {worst_name}",
            f"cpupower idle-set -D {_IDLE_SLOW_US}, or tuned's profile network-latency",
        )
    return ok(f"{worst} us from {worst_name}" if worst_name else "not seen (a virtual machine)")


@check("clocksource", "host")
def _clocksource(view: View) -> Answer:
    """The kernel's clock: every poll reads it."""
    folder = view.host.sys / "devices/system/clocksource/clocksource0"
    name = view.host.read(folder / "current_clocksource")
    if name is None:
        return ok("unknown")
    if name in _CLOCKS_FAST:
        return ok(name)
    others = (view.host.read(folder / "available_clocksource") or "").split()
    better = next((other for other in _CLOCKS_FAST if other in others), None)
    return warn(
        f"{name}: each reading is a system call",
        f"echo {better} > {folder / 'current_clocksource'}"
        if better
        else "boot with clocksource=tsc, if the machine's TSC is stable",
    )


@check("bpf-jit", "host")
def _bpf_jit(view: View) -> Answer:
    """net.core.bpf_jit_enable: the XDP program runs for each packet."""
    value = view.host.number(view.host.proc / "sys/net/core/bpf_jit_enable")
    if value == 0:
        return warn("off: the XDP program is interpreted", "sysctl net.core.bpf_jit_enable=1")
    return ok("on" if value else "built in")


@check("bpffs", "host")
def _bpffs(view: View) -> Answer:
    """The BPF file system, and where it is mounted: harpd pins its program there, so that jobs
    survive its restart.
    """
    known = view.host.read(view.host.proc / "filesystems")
    if known is not None and "bpf" not in known.split():
        return warn(
            "the kernel has none: jobs do not survive a restart of harpd",
            "a kernel with CONFIG_BPF_SYSCALL",
        )
    mounts = (view.host.read(view.host.proc / "self/mounts") or "").splitlines()
    paths = [
        line.split()[1] for line in mounts if len(line.split()) > 2 and line.split()[2] == "bpf"
    ]
    return ok(f"at {', '.join(paths)}" if paths else "not mounted; harpd mounts its own")


@check("af-xdp", "host")
def _af_xdp(view: View) -> Answer:
    """Whether an AF_XDP socket can be made: some kernels lack it, seccomp filters may forbid it."""
    number = view.xdp_socket()
    filtered = view.status.get("Seccomp") == "2"
    if number == 0:
        return ok("sockets can be made" + (", through the seccomp filter" if filtered else ""))
    if number in (errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT):
        return fail("this kernel has no AF_XDP", "a kernel with CONFIG_XDP_SOCKETS")
    if number not in (errno.EPERM, errno.EACCES):
        return fail(f"no socket: errno {number} ({errno.errorcode.get(number, '?')})", "look up")
    if not view.harpd.error:
        return ok("not by this process, but harpd leases them")
    if filtered and view.has_capability(CAP_NET_RAW):
        return fail(
            "a seccomp filter forbids it",
            "let the profile allow socket(AF_XDP) and bpf, or run harpd on the host",
        )
    return fail("not allowed to make one", "run as root, add CAP_NET_RAW, or start harpd")


@check("shm", "host")
def _shm(view: View) -> Answer:
    """The size of /dev/shm: NCCL's ranks of one host use it."""
    size = view.space("/dev/shm")
    remedy = "docker --shm-size=1g; Kubernetes: an emptyDir of medium Memory at /dev/shm"
    if size is None:
        return warn("there is none: NCCL between ranks of this host fails or is slow", remedy)
    if size < _SHM_SMALL:
        return warn(f"{size >> 20} MiB: too little for NCCL between ranks of this host", remedy)
    return ok(f"{size >> 20} MiB")


@check("pids", "host")
def _pids(view: View) -> Answer:
    """The cgroup's limit of threads (pids.max): NCCL and HARP start threads."""
    for folder in cgroup_folders(view, "pids"):
        limit = view.host.number(folder / "pids.max")
        used = view.host.number(folder / "pids.current") or 0
        if limit is not None and limit - used < _PIDS_SMALL:
            return warn(
                f"{used} of {limit} threads are used", "docker --pids-limit=-1, or raise pids.max"
            )
    return ok("enough")


@check("nccl-name", "host")
def _nccl_name(view: View) -> Answer:
    """Whether NCCL finds the plugin by its names, libnccl-net-harp.so and libnccl-net.so: without
    `harpctl run` NCCL uses its sockets; NCCL 2.28 and 2.29 need the second name (docs/nccl.md).
    """
    try:
        own = _paths.plugin()
    except HarpError:
        return None  # an installation without the plugin
    named = view.find_library(_paths.PLUGIN)
    if named is None:
        return ok("not by name: jobs need `harpctl run` or `env`; `harpctl install` changes that")
    if not filecmp.cmp(named, own, shallow=False):
        return warn(f"{named} is not the plugin of this HARP, {own}", "harpctl install")
    default = view.find_library(DEFAULT_NAME)
    if default is None:
        return ok(f"{named}; there is no {DEFAULT_NAME}: set NCCL_NET_PLUGIN=harp")
    if not filecmp.cmp(default, own, shallow=False):
        return ok(f"{named}; {default} is another plugin: set NCCL_NET_PLUGIN=harp")
    return ok(f"{named}, and by default {default}")


@check("irqbalance", "host")
def _irqbalance(view: View) -> Answer:
    """Whether irqbalance runs: it moves interrupts from their processors."""
    for name in view.host.names(view.host.proc):
        if name.isdecimal() and view.host.read(view.host.proc / name / "comm") == "irqbalance":
            return warn(
                f"runs (process {name}) and moves the queues' interrupts",
                "systemctl stop irqbalance, or ban the NIC's (IRQBALANCE_ARGS=--banirq=...)",
            )
    return ok("does not run")


@check("config", "host")
def _config(view: View) -> Answer:
    """harp.toml and HARP_* variables: harpd does not start with an invalid setting, and jobs do not
    get it.
    """
    config = view.read_config
    if isinstance(config, ConfigError):
        more = len(config.problems) - 1
        text = f"{config.problems[0]}" + (f", and {more} more" if more else "")
        return warn(text, "harpctl config validate")
    missing = [nic.ifname for nic in config.nics if nic.ifname not in view.links]
    if missing:
        existing = ", ".join(sorted(view.links))
        return warn(
            f"{config.file} names {', '.join(missing)}, not in this network namespace",
            f"correct its [[nic]]; there are: {existing}",
        )
    names = ", ".join(nic.ifname for nic in config.nics)
    return ok(f"{config.file or 'no harp.toml'}" + (f", for {names}" if names else ""))


@check("python-package", "host")
def _python_package(view: View) -> Answer:
    """Whether PyPI's other project `harp` is installed in this environment: it has the same import
    name, so that its files replace harp-nccl's.
    """
    problem = _conflict.problem(view.python_site)
    if problem:
        text, _, remedy = problem.partition("; ")
        return fail(text, remedy)
    return ok("harp-nccl alone has the import name harp")


@check("harpd", "host")
def _harpd(view: View) -> Answer:
    """harpd's socket, and whether it serves this user: harpd leases queues to jobs."""
    harpd = view.harpd
    if not harpd.error:
        names = ", ".join(harpd.devices) or "no interface"
        return ok(f"{harpd.version or 'harpd'} at {harpd.path} leases {names}")
    if harpd.error == errno.ENOENT:
        if view.privileged:
            return ok(f"not running ({harpd.path}): processes open queues by themselves")
        return warn(
            f"not running ({harpd.path}): unprivileged jobs get kernel lanes",
            "harpctl start; in a container, mount its socket",
        )
    if harpd.error in (errno.EACCES, errno.EPERM):
        return warn(
            f"does not serve this user: {harpd.why}",
            "name the user or a group of it in harp.toml, [daemon]",
        )
    if harpd.error == errno.ECONNREFUSED:
        return warn(f"{harpd.path} exists and no process listens: harpd died", "harpctl start")
    return warn(harpd.why, "harpctl restart; look at its log")


def cgroup_folders(view: View, controller: str) -> list[Path]:
    """Return the visible folders of this process's cgroup and of its ancestors."""
    base = view.host.sys / "fs/cgroup"
    folders = []
    for line in (view.host.read(view.host.proc / "self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        # One hierarchy (v2), or one for each controller (v1); v2 may be mounted with v1 as
        # "unified".
        roots = [base / controller, base / controllers] if controllers else [base, base / "unified"]
        for root in roots:
            folder = (root / path.strip("/")) if ".." not in Path(path).parts else root
            while folder != root and root in folder.parents:
                folders.append(folder)
                folder = folder.parent
            folders.append(root)
    return list(dict.fromkeys(folders))


def cpu_quota(view: View) -> float | None:
    """Return the smallest bandwidth limit of the cgroups, in processors; None: no limit."""
    limits = []
    for folder in cgroup_folders(view, "cpu"):
        numbers = (view.host.read(folder / "cpu.max") or "").split()
        if len(numbers) == 2 and all(map(str.isdecimal, numbers)) and int(numbers[1]):
            limits.append(int(numbers[0]) / int(numbers[1]))
        quota = view.host.number(folder / "cpu.cfs_quota_us")
        period = view.host.number(folder / "cpu.cfs_period_us")
        if quota and period and quota > 0 and period > 0:
            limits.append(quota / period)
    return min(limits, default=None)
