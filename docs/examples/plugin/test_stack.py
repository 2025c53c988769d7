"""A template with a server of its own, which is booted; run by: pytest --image IMAGE."""

from pathlib import Path

TEMPLATE = Path(__file__).parent / "greeting.yaml"


def test_template(stack):
    made = stack(TEMPLATE, name="world").wait()
    assert made.status == "CREATE_COMPLETE", made
    assert made.outputs["greeting"] == "hello, world\n"
