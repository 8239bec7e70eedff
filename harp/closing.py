# SPDX-License-Identifier: Apache-2.0
"""Objects that are closed at the end of a `with` block."""

from typing import Self


class Closing:
    """A context manager by its close(), which may be called twice."""

    def close(self) -> None:
        """Release everything that the object holds."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
