"""The benchmark of the forecast, over runs whose times the simulation itself has made, so that it can predict them."""

import json
from dataclasses import asdict, replace

import pytest

SCRIPT = "plan.py"


@pytest.mark.parametrize(("least", "status"), [(2, 0), (10, 1)])
def test_it_predicts_what_the_simulation_made_and_fails_when_a_target_is_missed(
    script, change, tmp_path, capsys, least, status
):
    change("FACTORS", (1.4,))
    change("LEAST", least)
    turns = [script["PlannedTurn"](4, 0.0, 6), script["PlannedTurn"](9, 0.0, 0)]
    runs = script["Runs"]({}, 1e-4, [script["PlannedEpisode"](30, tuple(turns))])
    machine = replace(script["Machine"](), decode_pass=3e-3)
    # 1664 tokens are sampled; a batch has 128 answers of 19 tokens, tools' included, and 16 prompts of 30.
    rows, learned = [], 1e-4 * (128 * 19 + 16 * 32)
    for slots in (*script["FITTED"], *script["PREDICTED"]):
        setting = script["Setting"](2, 5.0, 0, slots)
        seconds = runs.forecast(machine, setting)
        # The first of an odd number of steps is left out, and of the others each long one has a short one.
        steps = [9.0, seconds * 1.6, seconds * 0.4]
        rows.append(asdict(setting) | {"step": steps, "learn": [learned] * 3, "tokens": [1664.0] * 3})
    measured = tmp_path / "measured.json"
    episodes = [[30, [[turn.sampled, turn.tool_seconds, turn.tool_tokens] for turn in turns]]]
    measured.write_text(json.dumps({"rows": rows, "episodes": episodes}))
    out = tmp_path / "found.json"
    assert script["main"](["--measured", str(measured), "--out", str(out)]) == status
    assert ("MISSED" in capsys.readouterr().out) == (status == 1)
    record = json.loads(out.read_text())
    assert record["targets"][0]["found"] == 2
    assert record["rows"] == rows
