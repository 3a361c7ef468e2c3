# SPDX-License-Identifier: Apache-2.0
"""docs/api.md: its Python examples run, one after the other, and it names everything public."""

import re
from pathlib import Path

import chm

PAGE = Path(__file__).parents[2] / "docs" / "api.md"


def test_the_examples_run(tmp_path, monkeypatch, capsys) -> None:
    text = PAGE.read_text()
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S))
    assert len(blocks) > 10
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "example"}
    for block in blocks:
        line = text.count("\n", 0, block.start(1))
        code = compile("\n" * line + block.group(1), str(PAGE), "exec")
        exec(code, namespace)
    printed = capsys.readouterr().out
    assert "['Request', 'Request', 'OutOfRange']" in printed
    assert "[0, 0, 0, 0]" in printed


def test_every_error_is_in_the_table() -> None:
    table = PAGE.read_text().split("## Errors")[1].split("## From C")[0]
    errors = [
        name
        for name in chm.__all__
        if isinstance(getattr(chm, name), type) and issubclass(getattr(chm, name), chm.ChmError)
    ]
    assert [name for name in errors if f"`{name}`" not in table and name != "ChmError"] == []
