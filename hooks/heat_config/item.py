"""One entry of the list of deployments, checked before anything acts on it."""

from __future__ import annotations

from . import values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Item:
    """One element of the list; *refusal* is a sentence when it must not reach a hook, else None."""

    def __init__(self, element: dict[str, Any]) -> None:
        self.refusal: str | None = None
        # A copy: fields are corrected below.
        self.element = dict(element)
        given = element.get("id")
        if values.is_plain_id(given):
            self.key = str(given)
        else:
            # Such a deployment is signalled as failed once, so it needs a name of its own that is
            # the same at each pass.
            self.key = "rejected-" + _digest(given, element)
            self.refusal = (
                "The deployment's id is not a plain name of letters, digits, - and _; it could "
                "be a path, so nothing is run for it."
            )
        if not isinstance(self.element.get("options"), dict):
            self.element["options"] = {}
        for field in ("inputs", "outputs"):
            if not isinstance(self.element.get(field), list):
                self.element[field] = []
        if not isinstance(self.element.get("group"), str):
            self.element["group"] = ""
        if self.group == "component" and not self.refusal:
            self._resolve_component()

    def flatten(self) -> None:
        """Drop the config, the options, and inputs that are lists or maps: JSON cannot nest so."""
        self.refusal = (
            "The deployment holds a list or map that is nested too deeply to be passed on."
        )
        self.element["config"] = None
        self.element["options"] = {}
        self.element["inputs"] = [
            {"name": name, "value": value}
            for name, value in self.inputs.items()
            if not isinstance(value, (dict, list))
        ]

    @property
    def inputs(self) -> dict[str, Any]:
        return values.named_values(self.element["inputs"])

    @property
    def group(self) -> str:
        return str(self.element["group"])

    @property
    def options(self) -> dict[str, Any]:
        options: dict[str, Any] = self.element["options"]
        return options

    def _resolve_component(self) -> None:
        """Replace the component by the config and the tool of its first entry for the action."""
        config = self.element.get("config")
        entries = config.get("configs") if isinstance(config, dict) else None
        if not isinstance(entries, list):
            self.refusal = 'The config of the component has no list "configs".'
            return
        action = self.inputs.get("deploy_action")
        handled: list[str] = []
        for entry in entries:
            actions = entry.get("actions") if isinstance(entry, dict) else None
            if not isinstance(actions, list):
                continue
            # Heat's OS::Heat::SoftwareComponent has at most one entry for each action; heat-agents
            # take the first, too.
            if action in actions:
                tool = entry.get("tool")
                self.element["group"] = tool if isinstance(tool, str) else ""
                self.element["config"] = entry.get("config")
                return
            handled.extend(item for item in actions if isinstance(item, str))
        supported = ", ".join(values.clean(item) for item in handled) or "none"
        self.refusal = (
            f"The component has no config for the action {values.encode(values.text(action))}; "
            f"it has some for: {supported}."
        )


def _digest(given: object, element: dict[str, Any]) -> str:
    """Return a substitute for an invalid id, the same for the same entry."""
    from hashlib import sha256

    try:
        text = values.encode(given if isinstance(given, str) else element)
    except ValueError:
        names = [element.get(name) for name in ("name", "group", "creation_time")]
        # The element is nested too deeply for JSON; its plain fields identify it.
        text = values.encode([name for name in names if isinstance(name, str)])
    return sha256(text.encode("ascii")).hexdigest()[:32]
