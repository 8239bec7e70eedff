# SPDX-License-Identifier: Apache-2.0
"""`harpctl check`: whether HARP works here, and how well.

A check is a function from a view of the host, whose sources a test can replace, to one finding.
docs/check.md has the table of checks (`make docs`).
"""
