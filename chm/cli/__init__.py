# SPDX-License-Identifier: Apache-2.0
"""The command ``chm``: make, look at, check and watch a store. One module per family."""
