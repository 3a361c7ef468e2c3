# SPDX-License-Identifier: Apache-2.0
"""A CXL hybrid-memory device in userspace.

    import chm

    chm.format("disk.chm", "1GiB")
    with chm.open("disk.chm") as dev:
        dev.write(0, data)
        with dev.prefetch(0, len(data)) as req:     # issue, wait ... release
            use(req.view())                         # the bytes where they are: no copy

docs/api.md goes through all of it by task.
"""

from chm import store
from chm._buffers import aligned_empty
from chm._ffi import PAGE, lib, text
from chm.batch import Batch
from chm.device import Device, format, format_device, grow, open, sim
from chm.errors import (
    BadHeader,
    Busy,
    Cancelled,
    ChainBroken,
    ChmError,
    Closed,
    Deadlock,
    DeviceFull,
    Exists,
    Expired,
    ForeignMember,
    Forked,
    InvalidArgument,
    KeysFailed,
    MediaError,
    NewerFormat,
    NotFound,
    NotOpen,
    OutOfRange,
    QuotaFull,
    StaleHandle,
    TableFull,
    TooLarge,
    Unsupported,
    WaitTimeout,
    WouldBlock,
    WrongSize,
)
from chm.job import Job, ObjectLease
from chm.options import (
    FaultOptions,
    FormatOptions,
    Options,
    PaceOptions,
    SimOptions,
    cache_policies,
    flush_policies,
    sim_options,
)
from chm.peek import Snapshot, peek, snapshot
from chm.request import (
    Ptr,
    Request,
    chm_prefetch_object,
    chm_prefetch_progress,
    chm_prefetch_release,
    chm_prefetch_wait,
)
from chm.space import Object, Put, Space
from chm.stats import (
    DeviceInfo,
    Histogram,
    NamespaceInfo,
    SlowJob,
    SpaceStats,
    Stats,
    StoredObject,
    StoreInfo,
    StoreStats,
    StreamInfo,
)
from chm.store import Store
from chm.stream import Piece, Stream
from chm.units import (
    format_duration,
    format_rate,
    format_size,
    parse_duration,
    parse_rate,
    parse_size,
)
from chm.write import Write

__version__: str = text(lib.chm_version())

__all__ = [
    "PAGE",
    "BadHeader",
    "Batch",
    "Busy",
    "Cancelled",
    "ChainBroken",
    "ChmError",
    "Closed",
    "Deadlock",
    "Device",
    "DeviceFull",
    "DeviceInfo",
    "Exists",
    "Expired",
    "FaultOptions",
    "ForeignMember",
    "Forked",
    "FormatOptions",
    "Histogram",
    "InvalidArgument",
    "Job",
    "KeysFailed",
    "MediaError",
    "NamespaceInfo",
    "NewerFormat",
    "NotFound",
    "NotOpen",
    "Object",
    "ObjectLease",
    "Options",
    "OutOfRange",
    "PaceOptions",
    "Piece",
    "Ptr",
    "Put",
    "QuotaFull",
    "Request",
    "SimOptions",
    "SlowJob",
    "Snapshot",
    "Space",
    "SpaceStats",
    "StaleHandle",
    "Stats",
    "Store",
    "StoreInfo",
    "StoreStats",
    "StoredObject",
    "Stream",
    "StreamInfo",
    "TableFull",
    "TooLarge",
    "Unsupported",
    "WaitTimeout",
    "WouldBlock",
    "Write",
    "WrongSize",
    "__version__",
    "aligned_empty",
    "cache_policies",
    "chm_prefetch_object",
    "chm_prefetch_progress",
    "chm_prefetch_release",
    "chm_prefetch_wait",
    "flush_policies",
    "format",
    "format_device",
    "format_duration",
    "format_rate",
    "format_size",
    "grow",
    "open",
    "parse_duration",
    "parse_rate",
    "parse_size",
    "peek",
    "sim",
    "sim_options",
    "snapshot",
    "store",
]
