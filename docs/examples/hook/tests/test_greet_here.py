"""The hook in shell on this host, without a guest; run by: pytest FILE."""

from pathlib import Path

HOOK = Path(__file__).parents[1] / "hooks" / "greet.sh"


def test_each_name_is_greeted(run_hook):
    answer = run_hook(HOOK, "Good day", inputs={"names": ["Ada", "Bo B."]}, outputs=["day"])
    assert answer.complete, answer
    assert answer.stdout == "Good day, Ada\nGood day, Bo B.\n"
    assert answer.outputs["day"].count("-") == 2
