# SPDX-License-Identifier: Apache-2.0
"""Bugs to plant: one wrong line each, of the kinds that the explorer is there to find.

They are put into a copy of the tree and never into the tree itself. Each is a replacement of a
text that occurs once in its file, so that a change of the core which makes one pointless shows.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bug:
    """`old` becomes `new` in csrc/`file`."""

    name: str
    file: str
    old: str
    new: str


BUGS = [
    Bug(
        "a staged copy is found after an overwrite",
        "fw/wbuf.c",
        "    chm_window_forget(&fw->window, e->range.start, chm_ext_len(e));\n",
        "",
    ),
    Bug(
        "a flush does not wait for an older flush of the page",
        "fw/wbuf.c",
        "CHM_CONTAINER(n, struct chm_ext, range)->state == EXT_FLUSHING",
        "CHM_CONTAINER(n, struct chm_ext, range)->state == EXT_FREE",
    ),
    Bug(
        "a flush does not wait for reads that need what it replaces",
        "fw/wbuf.c",
        "range)->seq <= e->reads_before",
        "range)->seq > e->reads_before + 1000000",
    ),
    Bug(
        "the barrier is left out",
        "fw/durable.c",
        "if (!fw->medium->caps.volatile_cache) {",
        "if (fw->medium->caps.contents) {",
    ),
    Bug(
        "the barrier covers what is not written yet",
        "fw/durable.c",
        "    d->covers = settled_now(fw);\n    d->settled_bytes = 0;",
        "    d->covers = fw->wbuf.seq;\n    d->settled_bytes = 0;",
    ),
    Bug(
        "a replaced commit counts as settled",
        "fw/wbuf.c",
        "    e->first = oldest ? oldest->first : e->seq;\n",
        "    e->first = e->seq;\n    oldest = NULL;\n",
    ),
    Bug(
        "a short read is taken for a whole one",
        "fw/sched.c",
        "if ((uint32_t)io->res >= io->len) {",
        "if ((uint32_t)io->res >= io->len || (io->kind == CHM_IO_READ && io->res > 0)) {",
    ),
    Bug(
        "a short write goes on with the wrong bytes",
        "fw/sched.c",
        "    io->buf = (uint8_t *)io->buf + moved;\n",
        "    io->buf = (uint8_t *)io->buf + (io->kind == CHM_IO_READ ? moved : 0);\n",
    ),
    Bug(
        "window space is free before its read has ended",
        "fw/request.c",
        "    if (s->fetch.active) {\n        chm_tree_remove",
        "    if (s->fetch.active && s->fetch.ios == 0) {\n        chm_tree_remove",
    ),
    Bug(
        "an unaligned read misses the buffer in its first page",
        "fw/fetch.c",
        "        if (from >= end) {\n            return;",
        "        if (from >= end || start < f->user_addr) {\n            return;",
    ),
    Bug(
        "a trim in the buffer is not seen by reads",
        "fw/fetch.c",
        "        if (e->state == state) {\n            chm_fetch_put",
        "        if (e->state == state && !e->trim) {\n            chm_fetch_put",
    ),
    Bug(
        "lost bytes read as what the drive has",
        "fw/fetch.c",
        "range)->state == EXT_LOST) {\n            return -EIO;",
        "range)->state == EXT_LOST) {\n            continue;",
    ),
    Bug(
        "progress runs ahead of the bytes",
        "fw/fetch.c",
        "    if (f->inflight.next != &f->inflight) {\n",
        "    if (f->inflight.next != &f->inflight && f->ios > 1) {\n",
    ),
    Bug(
        "an expired request keeps its window space",
        "fw/request.c",
        "    req->state = REQ_DONE;\n    stage_detach(fw, req);\n",
        "    req->state = REQ_DONE;\n",
    ),
    Bug(
        "a cancelled request is not counted",
        "fw/request.c",
        "        fw->stats.cancelled++;\n",
        "",
    ),
    Bug(
        "the place of a deleted object is reused while it is held",
        "store/space.c",
        "    if (o->holds > 0) {\n        o->state = OBJECT_LEAVING;",
        "    if (o->holds > 1) {\n        o->state = OBJECT_LEAVING;",
    ),
]
