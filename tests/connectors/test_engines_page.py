# SPDX-License-Identifier: Apache-2.0
"""docs/engines.md and the README name the options, versions and tests that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from chm.connectors import TierOptions
from chm.options import option_names

TOP = Path(__file__).parents[2]
PAGE = (TOP / "docs" / "engines.md").read_text(encoding="utf-8")
README = (TOP / "README.md").read_text(encoding="utf-8")
HOST_KEYS = {"type", "module_path"}


def test_the_table_has_all_options_with_their_defaults() -> None:
    table = PAGE.split("## Options")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (?:`(.*?)`)? ?\|", table, re.MULTILINE))
    assert list(rows) == option_names(TierOptions)
    assert rows.pop("path") == ""
    given = TierOptions(path="x", **{name: json.loads(text) for name, text in rows.items()})
    assert given == TierOptions(path="x")


@pytest.mark.parametrize(
    ("pin", "row"), [("VLLM", "vLLM, tier"), ("LMCACHE", "LMCache server"), ("SGLANG", "SGLang")]
)
def test_the_versions_are_those_of_the_environment(pin: str, row: str) -> None:
    script = (TOP / "tools" / "engines").read_text(encoding="utf-8")
    (version,) = re.findall(rf"^{pin}=\S+==(\S+)$", script, re.MULTILINE)
    table = PAGE.split("## Versions")[1].split("\n## ")[0]
    (tested,) = re.findall(rf"^\| {row} \|[^|]*\|([^|]*)\|", table, re.MULTILINE)
    assert tested.split()[0] == version


def test_the_readme_has_a_configuration_that_is_accepted() -> None:
    (text,) = re.findall(r"```json\n(.*?)```", README, re.DOTALL)
    (tier,) = json.loads(text)["kv_connector_extra_config"]["secondary_tiers"]
    TierOptions.from_dict({name: tier[name] for name in tier.keys() - HOST_KEYS})


def test_what_is_named_is_there() -> None:
    for path in re.findall(r"`((?:tests|tools|docs)/[\w./-]+)`", PAGE):
        assert (TOP / path).exists(), path
