# SPDX-License-Identifier: Apache-2.0
"""`harpctl check`: tells whether HARP works on this host, and what slows it down.

A check is a function that gets a View of the host and returns one finding. docs/check.md has the
table of checks (`make docs`).
"""
