# SPDX-License-Identifier: Apache-2.0
"""The part of the build that pyproject.toml cannot say: which extension to make, and its tag."""

from setuptools import setup

setup(
    cffi_modules=["tools/build_core.py:ffibuilder"],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
