# SPDX-License-Identifier: Apache-2.0
"""Answers of harpd as memfds, called documents.

A document's memory is charged to harpd, and clients may keep its descriptor. harpd empties the
document at the client's next request, when the client has read it. Seals prevent all other changes.
When harpd ends, documents keep their contents.
"""

import fcntl
import os

_SEALS = fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


class Document:
    """A memfd with a text. fd: harpd's descriptor."""

    def __init__(self, text: bytes = b"") -> None:
        self.fd = os.memfd_create("harp-answer", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.fchmod(self.fd, 0o600)  # a client can't open it for writing
            if text:
                with os.fdopen(self.fd, "wb", closefd=False) as file:
                    file.write(text)
                os.lseek(self.fd, 0, os.SEEK_SET)
                self.seal()
        except BaseException:
            os.close(self.fd)
            raise

    def seal(self) -> None:
        """Prevent changes of its text. OSError: another process has mapped it for writing."""
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)

    def open_for_reader(self) -> int:
        """Return another descriptor, read-only, with its own offset."""
        return os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_CLOEXEC)

    def close(self, empty: bool = True) -> None:
        """Close it. empty: free its memory, even if clients keep descriptors."""
        if empty:
            os.ftruncate(self.fd, 0)
        os.close(self.fd)
