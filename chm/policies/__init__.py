# SPDX-License-Identifier: Apache-2.0
"""Object-level policies: what decides about whole KV blocks, above the device.

Four seams, each a small base class with a default, a baseline and a worked example. A policy of
your own is a subclass of one of them; docs/policies.md has each example complete.
"""

from chm.policies.admission import Admission, Offer
from chm.policies.eviction import Eviction
from chm.policies.placement import Node, Place, Placement
from chm.policies.prefetch import Known, Prefetch
from chm.policies.seam import SEAMS, Policy, PolicyError, Spec, available, find

__all__ = [
    "SEAMS",
    "Admission",
    "Eviction",
    "Known",
    "Node",
    "Offer",
    "Place",
    "Placement",
    "Policy",
    "PolicyError",
    "Prefetch",
    "Spec",
    "available",
    "find",
]
