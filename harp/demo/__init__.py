# SPDX-License-Identifier: Apache-2.0
"""The demo: data-parallel training across hosts, with every gradient through the plugin."""
