# SPDX-License-Identifier: Apache-2.0
"""A whole life of an engine in a process of its own: start, some prompts, exit.

    python engine_child.py '{"model": ..., "transfer": ..., "own_process": ..., "prompts": [...]}'

Writes JSON into the file ``out``: an answer for each prompt and, if ``again`` was said, for each
once more when the caches above the tiers were emptied; and vLLM's metrics of the tier.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from bench.serving import engine


def main() -> None:
    job: dict[str, Any] = json.loads(sys.argv[1])
    settings = {"disable_log_stats": False, **job.get("settings", {})}
    llm = engine.make_llm(Path(job["model"]), job["transfer"], job["own_process"], **settings)
    answers = [engine.ask(llm, prompt) for prompt in job["prompts"]]
    if job["again"]:
        for prompt in job["prompts"]:
            engine.forget(llm)
            answers.append(engine.ask(llm, prompt))
    if job["transfer"] is not None:
        engine.forget(llm)
    metrics = {m.name: m.value for m in llm.get_metrics() if "chm" in m.name}
    said = {"answers": [dataclasses.astuple(a) for a in answers], "metrics": metrics}
    Path(job["out"]).write_text(json.dumps(said))


if __name__ == "__main__":
    main()
