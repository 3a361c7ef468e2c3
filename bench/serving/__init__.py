# SPDX-License-Identifier: Apache-2.0
"""End-to-end measurements with real engines on the CPU; they run in the engine environment."""
