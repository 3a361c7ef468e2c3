# SPDX-License-Identifier: Apache-2.0
"""The master: which node has a key, and which node gets one.

``Master`` is the interface: plain data in and out, each call a batch, so that a process elsewhere
can answer it. ``LocalMaster`` answers it here, over a pool. It keeps no index of its own: the
stores of the nodes are asked, so what was evicted, dropped or lost with a node is a miss at once.

A key on its way in: unknown -> reserved (by one request, on one node) -> published: visible.
Reserved keys are hidden, also when their bytes are in the store already. A reservation that is
aborted, or not published in time, takes what was put under it out of the store.
"""

from __future__ import annotations

import errno
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from chm.errors import ChmError
from chm.events import NO_LOG, EventLog
from chm.policies import Node as Load
from chm.policies import Place, Placement, PolicyError, find
from chm.policies.seam import ask, refuse
from chm.pool import Node, Pool
from chm.stats import Record

RESERVATION_S = 60.0
BACKOFF_S = 1.0  # a node that refused for lack of space is asked again after this
DEFAULT_PLACEMENT = "whole-request:least-loaded"


@dataclass(frozen=True)
class Descriptor:
    """Where an object is: device address ``addr`` of ``size`` bytes on ``node``.

    The address is of this moment. Get the object by its key, which checks it.
    """

    node: int
    addr: int
    size: int


GRANTED, PRESENT, PENDING, REFUSED = "granted", "present", "pending", "refused"


@dataclass(frozen=True)
class Grant:
    """Answer for a key: granted on ``node``; present there already; pending (another request has
    it reserved); refused (no node can take it, or a key before it was refused)."""

    status: str
    node: int | None = None


class Master(Protocol):
    """What lookup and manager ask; each call is one message to wherever the master is."""

    def lookup(self, keys: Sequence[bytes]) -> list[Descriptor | None]:
        """Where each key is; None for a miss."""

    def reserve(
        self, request: str, keys: Sequence[bytes], sizes: Sequence[int], after: bytes | None = None
    ) -> list[Grant]:
        """Room for a request's new keys, in chain order; ``after`` is the key before the first."""

    def publish(self, request: str, keys: Sequence[bytes]) -> list[bool]:
        """These were put: whether each is visible now (False: expired, or not in the store)."""

    def abort(self, request: str, keys: Sequence[bytes] | None = None) -> int:
        """Forget reservations of a request (None: all); how many there were."""

    def refused(self, node: int, status: int) -> None:
        """A put that was granted failed on the node with this -errno."""


@dataclass(frozen=True)
class MasterStats(Record):
    """lookups = hits + misses; keys of reserve calls = granted + present + pending + refused;
    granted = published + aborted + expired + reserved now."""

    lookups: int = 0
    hits: int = 0
    misses: int = 0
    granted: int = 0
    present: int = 0
    pending: int = 0
    refused: int = 0
    published: int = 0
    aborted: int = 0
    expired: int = 0
    reserved: int = 0
    reserved_bytes: int = 0
    moved_full: int = 0
    moved_dead: int = 0


@dataclass
class _Reservation:
    request: str
    node: int
    size: int
    expires_ns: int


class LocalMaster:
    """A master in this process, for one namespace of a pool. Any thread may call.

    ``placement`` is a policy of the seam of that name: "whole-request:least-loaded" (default),
    "whole-request:round-robin", "interleave", or a class of yours.
    """

    def __init__(
        self,
        pool: Pool,
        namespace: str,
        *,
        placement: str | Placement = DEFAULT_PLACEMENT,
        reservation_s: float = RESERVATION_S,
        clock: Callable[[], int] | None = None,
        log: EventLog = NO_LOG,
    ) -> None:
        self.pool = pool
        self.namespace = namespace
        self._placement = _policy(placement)
        self._ttl_ns = int(reservation_s * 1e9)
        self._clock = clock or pool.clock
        self._log = log
        self._lock = threading.RLock()
        # In order of expiry, since all live equally long.
        self._reserved: OrderedDict[bytes, _Reservation] = OrderedDict()
        self._reserved_bytes: dict[int, int] = {}
        self._full_until: dict[int, int] = {}
        self._counts = dict.fromkeys(MasterStats.__dataclass_fields__, 0)

    # -- looking up ----------------------------------------------------------------------------

    def lookup(self, keys: Sequence[bytes]) -> list[Descriptor | None]:
        """See ``Master``. Counts as a use of the leading run."""
        with self._lock:
            self._expire()
            found = self._find(keys, touch=True)
            hits = sum(d is not None for d in found)
            self._count(lookups=len(keys), hits=hits, misses=len(keys) - hits)
            return found

    def _find(self, keys: Sequence[bytes], touch: bool) -> list[Descriptor | None]:
        found: list[Descriptor | None] = [None] * len(keys)
        left = [i for i, key in enumerate(keys) if key not in self._reserved]
        for node in self.pool.nodes:
            if not left:
                break
            if not node.readable:
                continue
            try:
                left = self._find_on(node, keys, left, found, touch)
            except ChmError as error:
                node.failed(error)  # what it has is a miss
        return found

    def _find_on(
        self,
        node: Node,
        keys: Sequence[bytes],
        left: list[int],
        found: list[Descriptor | None],
        touch: bool,
    ) -> list[int]:
        """Fill in what this node has; what is still left."""
        ns, wanted = node.ns(self.namespace), [keys[i] for i in left]
        there = node.store.sizes(ns, wanted, touch=touch).nonzero()[0].tolist()
        if not there:
            return left
        places = node.store.where(ns, [wanted[j] for j in there])
        for j, place in zip(there, places, strict=True):
            if place is not None:
                found[left[j]] = Descriptor(node.number, place.addr, place.length)
        return [i for i in left if found[i] is None]

    # -- placing -------------------------------------------------------------------------------

    def reserve(
        self, request: str, keys: Sequence[bytes], sizes: Sequence[int], after: bytes | None = None
    ) -> list[Grant]:
        """See ``Master``. A request stays on the node of the key before; a new one goes where the
        placement policy says; a full or dead node is replaced by another, and counted."""
        if len(keys) != len(sizes):
            raise ValueError(f"{len(keys)} keys, but {len(sizes)} sizes")
        with self._lock:
            self._expire()
            loads = self._loads()
            home = self._home(after)
            grants: list[Grant] = []
            found = self._find(keys, touch=False)
            for key, size, there in zip(keys, sizes, found, strict=True):
                grant = self._grant(request, key, size, there, home, loads)
                if grant.status == REFUSED:
                    break
                home = grant.node
                grants.append(grant)
            grants += [Grant(REFUSED)] * (len(keys) - len(grants))
            for grant in grants:
                self._count(**{grant.status: 1})
            granted = [k for k, g in zip(keys, grants, strict=True) if g.status == GRANTED]
            self._log.note("reserve", request, granted)
            return grants

    def _home(self, after: bytes | None) -> int | None:
        if after is None:
            return None
        if after in self._reserved:
            return self._reserved[after].node
        there = self._find([after], touch=False)[0]
        return None if there is None else there.node

    def _loads(self) -> list[Load]:
        """The nodes that may get objects, numbered as in the pool; reserved counts as used."""
        loads = []
        for node in self.pool.nodes:
            if not node.writable:
                continue
            try:
                used, free = node.load()
            except ChmError as error:
                node.failed(error)
                continue
            reserved = self._reserved_bytes.get(node.number, 0)
            loads.append(Load(node.number, used + reserved, max(free - reserved, 0)))
        return loads

    def _grant(
        self,
        request: str,
        key: bytes,
        size: int,
        there: Descriptor | None,
        home: int | None,
        loads: list[Load],
    ) -> Grant:
        if there is not None:
            return Grant(PRESENT, there.node)
        other = self._reserved.get(key)
        if other is not None:
            return Grant(PENDING, other.node)
        load = self._place(request, key, size, home, loads)
        if load is None:
            return Grant(REFUSED)
        expires = self._clock() + self._ttl_ns
        self._reserved[key] = _Reservation(request, load.number, size, expires)
        reserved = self._reserved_bytes.get(load.number, 0)
        self._reserved_bytes[load.number] = reserved + size
        load.used_bytes += size
        load.free_bytes = max(load.free_bytes - size, 0)
        return Grant(GRANTED, load.number)

    def _place(
        self, request: str, key: bytes, size: int, home: int | None, loads: list[Load]
    ) -> Load | None:
        """Ask the policy, which sees the nodes numbered from 0; then look for room."""
        if not loads:
            return None
        at = next((i for i, load in enumerate(loads) if load.number == home), None)
        if home is not None and at is None:
            self._count(moved_dead=1)
        seen = [Load(i, load.used_bytes, load.free_bytes) for i, load in enumerate(loads)]
        place = Place(zlib.crc32(request.encode()), int.from_bytes(key, "big"), size, at, seen)
        chosen = ask(self._placement, self._placement.place, place)
        if chosen is None:
            chosen = at if at is not None else 0
        if not 0 <= chosen < len(loads):
            raise refuse(self._placement, f"chose node {chosen} of {len(loads)}")
        for step in range(len(loads)):
            load = loads[(chosen + step) % len(loads)]
            if self._has_room(load, size):
                self._count(moved_full=int(step > 0))
                return load
        return None

    def _has_room(self, load: Load, size: int) -> bool:
        """A store evicts, so it is full only if reservations fill it, or if it said so."""
        node = self.pool.nodes[load.number]
        reserved = self._reserved_bytes.get(load.number, 0)
        if reserved + size > node.data_bytes:
            return False
        return self._clock() >= self._full_until.get(load.number, 0)

    def refused(self, node: int, status: int) -> None:
        """See ``Master``. No space: the node gets nothing for a second; EIO: it is looked at."""
        with self._lock:
            if -status in (errno.ENOSPC, errno.EMFILE):
                self._full_until[node] = self._clock() + int(BACKOFF_S * 1e9)
            elif -status in (errno.EIO, errno.ENODEV, errno.ESHUTDOWN):
                self.pool.node(node).failed(ChmError(-status, "put"))

    # -- the end of a reservation --------------------------------------------------------------

    def publish(self, request: str, keys: Sequence[bytes]) -> list[bool]:
        """See ``Master``."""
        with self._lock:
            self._expire()
            mine = [key for key in keys if self._is_of(key, request)]
            held = {key: self._take(key) for key in mine}
            self._log.note("publish", request, mine)
            found = self._find(mine, touch=False)
            visible = {key for key, there in zip(mine, found, strict=True) if there is not None}
            self._count(published=len(visible), aborted=len(held) - len(visible))
            self._log.note("visible", request, [key for key in mine if key in visible])
            return [key in visible for key in keys]

    def abort(self, request: str, keys: Sequence[bytes] | None = None) -> int:
        """See ``Master``. What was put under them is deleted."""
        with self._lock:
            among = list(self._reserved) if keys is None else keys
            mine = [key for key in among if self._is_of(key, request)]
            self._drop(mine)
            self._count(aborted=len(mine))
            if mine:
                self._log.note("abort", request, mine)
            return len(mine)

    def _is_of(self, key: bytes, request: str) -> bool:
        reservation = self._reserved.get(key)
        return reservation is not None and reservation.request == request

    def _expire(self) -> None:
        now, late = self._clock(), []
        for key, reservation in self._reserved.items():
            if reservation.expires_ns > now:
                break
            late.append((key, reservation.request))
        self._drop([key for key, _ in late])
        self._count(expired=len(late))
        for key, request in late:
            self._log.note("expire", request, [key])

    def _drop(self, keys: Sequence[bytes]) -> None:
        """These will not be published: nobody may see what was put."""
        by_node: dict[int, list[bytes]] = {}
        for key in keys:
            by_node.setdefault(self._take(key).node, []).append(key)
        for number, some in by_node.items():
            node = self.pool.nodes[number]
            try:
                if node.readable:
                    node.store.delete(node.ns(self.namespace), some).wait()
            except ChmError as error:
                node.failed(error)

    def _take(self, key: bytes) -> _Reservation:
        reservation = self._reserved.pop(key)
        self._reserved_bytes[reservation.node] -= reservation.size
        return reservation

    # -- counting ------------------------------------------------------------------------------

    def _count(self, **changes: int) -> None:
        for name, change in changes.items():
            self._counts[name] += change

    def stats(self) -> MasterStats:
        """A copy of the counters."""
        with self._lock:
            self._expire()
            now = {
                "reserved": len(self._reserved),
                "reserved_bytes": sum(self._reserved_bytes.values()),
            }
            return MasterStats(**{**self._counts, **now})


def _policy(placement: str | Placement) -> Placement:
    if isinstance(placement, Placement):
        return placement
    made = find(placement).make()
    if not isinstance(made, Placement) or not made.whole:
        raise PolicyError(
            f"{placement!r} does not place whole objects on nodes: use {DEFAULT_PLACEMENT}, "
            "whole-request:round-robin, interleave, or a class of yours"
        )
    return made
