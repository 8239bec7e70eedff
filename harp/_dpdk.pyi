# SPDX-License-Identifier: Apache-2.0
# The module that cffi builds from harp/native/dpdk/dpdk.h. Only harp.dpdk uses it, with types.
from typing import Any

ffi: Any
lib: Any
