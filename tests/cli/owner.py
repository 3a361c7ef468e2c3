# SPDX-License-Identifier: Apache-2.0
"""Another process that has a store open: fills it, says so, and works on until it is killed."""

import sys

import numpy as np

import chm

with chm.open(sys.argv[1], dram_bytes="32MiB", thread=True) as device, chm.Store(device) as store:
    ns = store.namespace("model")
    keys = [bytes([n]) * 16 for n in range(8)]
    data = np.arange(8 * 65536, dtype=np.uint8).reshape(8, 65536)
    store.put(ns, keys, data, wait=True).result()
    store.sync().result()
    print("ready", flush=True)
    out = np.empty_like(data)
    while True:
        store.exists(ns, [*keys, b"?" * 16])
        store.get(ns, keys, out).result()
        store.put(ns, [*keys, b"!" * 16], [*data, b"x"]).wait()
        store.remove(ns, b"!" * 16)
