# SPDX-License-Identifier: Apache-2.0
"""What travels instead of a gradient, as Horovod's scripts name it."""

from typing import Any

import torch


class Compressor:
    """Two functions: compress() returns what travels and what decompress() needs."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """As it is."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:
        """As it came."""
        return tensor


class Float16Compressor(Compressor):
    """Sends and adds as float16. The wire format of harp.torch.Options adds as float32."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Rounds floating-point tensors."""
        return (tensor.half() if tensor.is_floating_point() else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:
        """In the type that it had."""
        return tensor.to(context)


class Compression:
    """The compressors."""

    none = Compressor
    fp16 = Float16Compressor
