# SPDX-License-Identifier: Apache-2.0
"""A pool: several devices, each a *node*, in one address space.

A node is up, degraded (reads only), missing (could not be opened), down (failed later) or removed.
What lies on a node that is not readable is a miss, and costs only the requests placed there. The
pool keeps nothing of its own on disk: it is its members, in the order in which they are given.

A pool address is node << 48 | offset on that node's device. On each node the front of the device
may be raw space (``alloc``), the rest is the node's store.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from chm import store as stores
from chm.device import Device
from chm.device import format as format_device
from chm.device import open as open_device
from chm.errors import ChmError, DeviceFull, InvalidArgument, NotFound
from chm.options import Path, Size, path_list
from chm.request import Ptr, Request
from chm.space import Put, Space
from chm.stats import Record
from chm.store import Store
from chm.units import parse_size

NODE_SHIFT = 48
OFFSET_MASK = (1 << NODE_SHIFT) - 1
_DEAD = {errno.ENODEV, errno.ENXIO, errno.ESHUTDOWN, errno.ECHILD}


@dataclass(frozen=True)
class Member:
    """A device as the pool is told of it: backing files with options of ``chm.open``, or an open
    device, which the pool closes. ``space`` bytes in front are raw space, the rest is the store."""

    name: str
    paths: Path | Iterable[Path] = ()
    device: Device | None = None
    space: Size = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    store_options: Mapping[str, Any] = field(default_factory=dict)

    def open(self) -> Device:
        """The device. Raises what ``chm.open`` does."""
        if self.device is not None:
            return self.device
        return open_device(path_list(self.paths), **{"thread": True, **self.options})


@dataclass(frozen=True)
class Region(Record):
    """Addresses of a node: ``base`` to ``base + length`` of the pool. ``key`` names what is there:
    it changes when the node's store is formatted anew."""

    base: int
    length: int
    key: int


@dataclass(frozen=True)
class NodeInfo(Record):
    """A node, for people: ``reason`` says why it is not up."""

    number: int
    name: str
    state: str
    reason: str
    capacity_bytes: int
    window_bytes: int
    data_bytes: int
    used_bytes: int
    objects: int


def format(
    member: Member, capacity: Size | None = None, force: bool = False, **fields: Any
) -> None:
    """Make a member: format its files (not an open device) and the store on it.

    ``fields`` are those of ``chm.store.format``.
    """
    fields = {"base": member.space, "force": force, **fields}
    if member.device is not None:
        stores.format(member.device, **fields)
        return
    paths = path_list(member.paths)
    format_device(paths, capacity, force=force)
    with open_device(paths) as device:
        stores.format(device, **fields)


class Node:
    """One device of a pool. ``device``, ``store`` and ``space`` exist while it is readable."""

    def __init__(self, number: int, member: Member) -> None:
        self.number = number
        self.member = member
        self.state = "missing"
        self.reason = "not opened"
        self.device: Device | None = None
        self.window_bytes = self.data_bytes = self.capacity_bytes = 0
        self._store: Store | None = None
        self._space: Space | None = None
        self._names: dict[str, int] = {}

    @property
    def name(self) -> str:
        """As the member was called."""
        return self.member.name

    @property
    def readable(self) -> bool:
        """Whether it may be asked for objects."""
        return self.state in ("up", "degraded")

    @property
    def writable(self) -> bool:
        """Whether objects may be placed on it."""
        return self.state == "up"

    @property
    def store(self) -> Store:
        """Its store. NotFound if the node is not readable."""
        if self._store is None or not self.readable:
            raise NotFound(errno.ENOENT, f"node {self.name} is {self.state}: {self.reason}")
        return self._store

    @property
    def space(self) -> Space:
        """Its raw space. NotFound if the member has none, or is not readable."""
        if self._space is None or not self.readable:
            why = self.reason or "the member was given no raw space"
            raise NotFound(errno.ENOENT, f"node {self.name} has no raw space: {why}")
        return self._space

    def open(self) -> None:
        """Open it; a failure makes it missing, with the reason."""
        device: Device | None = None
        try:
            device = self.member.open()
            space = parse_size(self.member.space)
            options = {"base": space, **self.member.store_options}
            self._store = Store(device, **options)
            self._space = Space(device, base=0, length=space) if space else None
            self.device = device
            self.window_bytes = device.info.window_bytes
            self.capacity_bytes = device.info.capacity_bytes
            self.data_bytes = self._store.info.data_bytes
        except ChmError as error:
            self.state, self.reason = "missing", str(error)
            self._store = self._space = self.device = None
            if device is not None:
                device.close()
            return
        self.state, self.reason = "up", ""

    def ns(self, name: str) -> int:
        """Number of a namespace on this node, made if it is not there."""
        number = self._names.get(name)
        if number is None:
            number = self._names[name] = self.store.namespace(name)
        return number

    def failed(self, error: ChmError) -> None:
        """A call on it failed: it is down if the error says that the device is gone."""
        if error.errno in _DEAD and self.readable:
            self.state, self.reason = "down", str(error)
        else:
            self.check()

    def check(self) -> None:
        """Look whether it is degraded."""
        if not self.readable or self._store is None or self.device is None:
            return
        try:
            if self._store.info.degraded or self.device.info.degraded:
                self.state, self.reason = "degraded", "the device lost writes: it takes no more"
        except ChmError as error:
            self.state, self.reason = "down", str(error)

    def load(self) -> tuple[int, int]:
        """Used and free bytes of its store."""
        return self.store.room()

    def close(self, timeout: float) -> None:
        """Close store and device."""
        device, self.device = self.device, None
        self._store = self._space = None
        self._names.clear()
        if device is not None:
            device.close(timeout)

    def info(self) -> NodeInfo:
        """What it is now."""
        used = objects = 0
        if self.readable:
            stats = self.store.stats()
            used, objects = stats.used_bytes, stats.objects
        return NodeInfo(
            self.number,
            self.name,
            self.state,
            self.reason,
            self.capacity_bytes,
            self.window_bytes,
            self.data_bytes,
            used,
            objects,
        )


class Allocation:
    """Raw space on a node, to be filled: made by ``Pool.alloc``.

        with pool.alloc(nbytes, node=1) as room:
            room.fill(data)

    Committed at the end of the block, aborted on an exception; ``free`` gives it back.
    """

    def __init__(self, node: Node, put: Put) -> None:
        self.node = node.number
        self.put = put
        self._space = node.space
        self.length = put.object.length
        self.address = node.number << NODE_SHIFT | put.object.addr

    def fill(self, buf: Any, timeout: float | None = 10.0) -> None:
        """Copy a buffer of ``length`` bytes into it, waiting for room in the write buffer."""
        source = memoryview(buf).cast("B")
        if source.nbytes != self.length:
            raise InvalidArgument(errno.EINVAL, f"{source.nbytes} bytes for {self.length} of space")
        at = 0
        for view in self.put.pieces(timeout):
            view[:] = source[at : at + view.nbytes]
            at += view.nbytes

    def free(self) -> None:
        """Give it back, when nobody reads it any more."""
        self._space.delete(self.put.object)

    def __enter__(self) -> Allocation:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.put.__exit__(kind, *rest)


class Pool:
    """Several nodes. A context manager; opens with members missing, ``nodes`` says which.

    ``clock`` gives nanoseconds for reservations, hints and deadlines of whoever uses the pool
    (default: monotonic; tests give virtual time).
    """

    def __init__(
        self, members: Iterable[Member], *, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self.clock = clock
        self.spilled = 0
        """Allocations that went to another node than was asked for."""
        self._lock = threading.Lock()
        self._nodes: tuple[Node, ...] = ()
        try:
            for member in members:
                self.add(member)
        except BaseException:
            self.close()
            raise

    # -- members -------------------------------------------------------------------------------

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, by number, also those that are missing or removed."""
        return self._nodes

    def node(self, number: int) -> Node:
        """NotFound if there never was such a node."""
        if not 0 <= number < len(self._nodes):
            raise NotFound(errno.ENOENT, f"the pool has no node {number}")
        return self._nodes[number]

    def add(self, member: Member) -> Node:
        """Open one more device, while the others are in use. Its state tells whether it worked."""
        with self._lock:
            node = Node(len(self._nodes), member)
            node.open()
            self._nodes = (*self._nodes, node)
        return node

    def remove(self, number: int, timeout: float = 30.0) -> None:
        """Take a node out, while the others are in use; its objects miss. BufferError, and it
        stays, while a view of it lives. Numbers of other nodes stay."""
        node = self.node(number)
        with self._lock:
            was = node.state
            node.state = "removed"  # nobody finds it from here on
            try:
                device = node.device
                if device is not None:
                    device.close(timeout)
            except BufferError:
                node.state = was
                raise
            node.close(timeout)
            node.reason = "removed"

    def revive(self, number: int) -> Node:
        """Try to open a node that is missing, down or removed once more."""
        node = self.node(number)
        with self._lock:
            if not node.readable:
                node.close(1.0)
                node.open()
        return node

    def check(self) -> None:
        """Look at every node; one that is degraded gets no new objects."""
        for node in self._nodes:
            node.check()

    def info(self) -> list[NodeInfo]:
        """All nodes."""
        return [node.info() for node in self._nodes]

    # -- addresses -----------------------------------------------------------------------------

    def region(self, number: int) -> Region:
        """The addresses of a node, as a network door would register them."""
        node = self.node(number)
        key = int(node.store.info.id[:16], 16)
        return Region(number << NODE_SHIFT, node.capacity_bytes, key)

    def split(self, address: int) -> tuple[Node, int]:
        """The node of an address, and the offset on its device. NotFound if it is not readable."""
        node = self.node(address >> NODE_SHIFT)
        if not node.readable:
            raise NotFound(errno.ENOENT, f"node {node.name} is {node.state}: {node.reason}")
        return node, address & OFFSET_MASK

    def ptr(self, address: int) -> Ptr:
        """For the published form: ``chm_prefetch_object(pool.ptr(address), size)``."""
        node, offset = self.split(address)
        assert node.device is not None
        return node.device.ptr(offset)

    def prefetch(self, address: int, length: int, **options: Any) -> Request:
        """As ``Device.prefetch`` of the node."""
        ptr = self.ptr(address)
        return ptr.device.prefetch(ptr.addr, length, **options)

    def read(self, address: int, length: int | None = None, out: Any = None) -> Any:
        """As ``Device.read`` of the node."""
        ptr = self.ptr(address)
        return ptr.device.read(ptr.addr, length, out)

    def alloc(self, length: int, node: int | None = None) -> Allocation:
        """Raw space of ``length`` bytes on a node; a full or dead one: on another (``spilled``).

        Without ``node``: where most raw space is free. DeviceFull if no node has room.
        """
        able = [n for n in self._nodes if n.writable and n._space is not None]
        order = sorted(able, key=lambda n: -n.space.stats.free_bytes)
        if node is not None:
            self.node(node)
            order.sort(key=lambda n: n.number != node)
        for candidate in order:
            try:
                put = candidate.space.put_begin(length)
            except ChmError as error:
                if error.errno not in (errno.ENOSPC, errno.ENOMEM):
                    candidate.failed(error)
                continue
            self.spilled += node is not None and candidate.number != node
            return Allocation(candidate, put)
        raise DeviceFull(errno.ENOSPC, f"no node has {length} bytes of raw space in one piece")

    # -- the end -------------------------------------------------------------------------------

    def close(self, timeout: float = 30.0) -> None:
        """Close all nodes. BufferError while a view of one lives: that one, and those behind it,
        stay open. The first failure of a node is raised when all are closed."""
        first: ChmError | None = None
        for node in self._nodes:
            try:
                if node.device is not None:
                    node.device.close(timeout)
            except ChmError as error:
                first = first or error
            node.close(timeout)
            if node.readable:
                node.state, node.reason = "removed", "the pool is closed"
        if first is not None:
            raise first

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except BufferError:
            if kind is None:
                raise
