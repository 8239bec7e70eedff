# SPDX-License-Identifier: Apache-2.0
"""harpd: one daemon per host that prepares its NICs and leases instances to jobs.

Modules that decide, without system calls: settings, ports, table, limits, state, messages. Modules
that use the kernel: kernel, netlink, sockets, peer, frames, rundir. Modules that join them: loop,
nics, leasing, watching, documents, metrics, server, session, queries, daemon.
"""
