# SPDX-License-Identifier: Apache-2.0
# What cffi makes of harp/native/dpdk/dpdk.h. Used by harp.dpdk alone, which has the types.
from typing import Any

ffi: Any
lib: Any
