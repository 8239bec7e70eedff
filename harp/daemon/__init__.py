# SPDX-License-Identifier: Apache-2.0
"""harpd: one daemon per host that prepares its NICs and leases instances to jobs.

settings, ports, table, limits, state and messages decide, without system calls. kernel, netlink,
sockets, peer, frames and rundir use the kernel. The other modules connect these.
"""
