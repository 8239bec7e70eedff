# SPDX-License-Identifier: Apache-2.0
"""Would HARP work here, and how well? What `harpctl check` knows.

A check is a small function from a view of the host, all of whose sources a test can replace, to one
finding. docs/check.md has the table of them (document.py).
"""
