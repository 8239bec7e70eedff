# SPDX-License-Identifier: Apache-2.0
"""The settings by which a test chooses what carries a job's messages."""

MIXED = "mixed"
# Between the sizes that the tests send: both kinds of lanes carry data.
MIXED_XDP_BYTES_MAX = "16384"


def path_env(path: str) -> dict[str, str]:
    """Settings of a path. "mixed": small messages on HARP lanes, longer ones on kernel lanes."""
    if path == MIXED:
        return {"HARP_PATH": "auto", "HARP_XDP_BYTES_MAX": MIXED_XDP_BYTES_MAX}
    return {"HARP_PATH": path}
