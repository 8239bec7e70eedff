# SPDX-License-Identifier: Apache-2.0
"""What is closed when its `with` block is left."""

from typing import Self


class Closing:
    """A context manager by its close(), which is safe twice."""

    def close(self) -> None:
        """Gives back all that it holds."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
