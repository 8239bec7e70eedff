# SPDX-License-Identifier: Apache-2.0
"""harpd: one daemon per host that prepares its NICs and leases instances to jobs.

Pure parts, which decide: settings, ports, table, cores, limits, state. Parts that touch the
kernel: kernel, netlink, peer, rundir. What joins them: loop, nics, leasing, server, session,
queries, daemon.
"""
