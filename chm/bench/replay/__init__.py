# SPDX-License-Identifier: Apache-2.0
"""`chm-bench replay`: traces through Lookup, manager and a pool, verified and resumable.

work        traces become requests, and ids objects: key, size and contents
notes       what is done, in a file that outlives the process
walk        members, and the requests one after the other
summary     rates, windows and what they are compared with
command     flags, tables, JSON
"""
