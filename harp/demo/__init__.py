# SPDX-License-Identifier: Apache-2.0
"""The demonstration: data-parallel training across hosts, every gradient through the plugin."""
