# SPDX-License-Identifier: Apache-2.0
"""harp.Instance on an AF_XDP queue: fork and errors. test_docs_python.py and test_queues.py test
its connections, tests/python/test_endpoint.py arrays and frames."""

import sys
from pathlib import Path

from netns_tools import Tools, outcome

from harp.lab import Lab


def script(code: str, *args: object) -> list[str | Path]:
    return [sys.executable, "-c", code, *map(str, args)]


FORKED = """
import os, sys, harp
ifname = sys.argv[1]
instance = harp.Instance(ifname)
acceptor = instance.listen(61000)
fds = set(os.listdir("/proc/self/fd"))
read, write = os.pipe()
child = os.fork()
if child == 0:
    os.close(write)
    errors = 0
    calls = (lambda: instance.describe, instance.stats, acceptor.accept, instance.fileno,
             lambda: instance.connect("10.77.0.2", 9), lambda: instance.stack.stats())
    for call in calls:
        try:
            call()
        except RuntimeError:
            errors += 1
    del instance, acceptor
    import gc
    gc.collect()
    os.read(read, 1)  # lives until the parent is done: the queue must be free nevertheless
    os._exit(0 if errors == len(calls) else 1)
os.close(read)
instance.close()
# The kernel frees a queue asynchronously, so opening waits.
with harp.Instance(ifname) as second:
    assert second.describe
os.close(write)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print("good")
"""


def test_a_forked_child_neither_uses_nor_holds_the_instance(tools: Tools, lab: Lab) -> None:
    here = lab.hosts[0]
    out, err, status = outcome(here, script(FORKED, here.ifname))
    assert (out, status) == ("good\n", 0), err


SIGNALS = """
import signal, sys, harp
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
for _ in range(5):
    harp.Instance(sys.argv[1]).close()
signal.setitimer(signal.ITIMER_REAL, 0)
print("good")
"""


def test_an_instance_opens_while_a_profiler_sends_signals(tools: Tools, lab: Lab) -> None:
    here = lab.hosts[0]
    out, err, status = outcome(here, script(SIGNALS, here.ifname))
    assert (out, status) == ("good\n", 0), err


REFUSALS = """
import sys, harp
ifname = sys.argv[1]
def refusal(*args, **options):
    try:
        harp.Instance(*args, **options)
    except (OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    raise SystemExit(f"{args} {options} was opened")
print(refusal("nonesuch0"))
print(refusal(ifname, 7))
print(refusal(ifname, -1))
print(refusal("a-name-that-is-too-long"))
print(refusal(ifname, xdp_mode="fast"))
print(refusal(ifname, daemon="require", socket="/nonexistent/harpd.sock"))
print(refusal(ifname, daemon="perhaps"))
with harp.Instance(ifname) as instance:
    print(refusal(ifname))
    view = None
    instance.close()
    instance.close()
    for call in (lambda: instance.describe, instance.stats, instance.snapshot, instance.flows,
                 instance.steering, instance.fileno, instance.poll, lambda: instance.stack,
                 lambda: instance.listen(1), lambda: instance.connect("10.77.0.2", 1)):
        try:
            call()
        except ValueError as error:
            assert "closed" in str(error), error
        else:
            raise SystemExit("a closed instance did something")
"""


def test_refusals_name_the_cause(tools: Tools, lab: Lab) -> None:
    here = lab.hosts[0]
    out, err, status = outcome(here, script(REFUSALS, here.ifname))
    assert status == 0, err
    lines = out.splitlines()
    for line, words in zip(
        lines,
        [
            ("OSError", "nonesuch0", "no such interface"),
            ("OSError", "queue 7", "no such queue"),
            ("ValueError", "queue -1"),
            ("ValueError", "not an interface name"),
            ("ValueError", "xdp_mode", "native"),
            ("FileNotFoundError", "/nonexistent/harpd.sock"),
            ("ValueError", "perhaps"),
            ("OSError", "queue 0"),
        ],
        strict=True,
    ):
        assert all(word in line for word in words), line
