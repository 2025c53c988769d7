"""One entry of the deployments list, checked before anything acts on it."""

from . import values


class Item:
    """One element of the list, checked: *refusal* is a sentence when no hook may see it."""

    def __init__(self, element):
        self.refusal = None
        self.element = dict(element)
        given = element.get("id")
        if values.is_plain_id(given):
            self.key = given
        else:
            self.key = "rejected-" + _digest(given if isinstance(given, str) else element)
            self.refusal = (
                "The deployment's id is not a plain name of letters, digits, - and _; it could "
                "be a path, so nothing is run for it."
            )
        if not isinstance(self.element.get("options"), dict):
            self.element["options"] = {}
        for field in ("inputs", "outputs"):
            if not isinstance(self.element.get(field), list):
                self.element[field] = []
        self.inputs = values.named_values(self.element["inputs"])
        if not isinstance(self.element.get("group"), str):
            self.element["group"] = ""
        if self.group == "component" and not self.refusal:
            self._resolve_component()

    @property
    def group(self):
        return self.element["group"]

    @property
    def options(self):
        return self.element["options"]

    def _resolve_component(self):
        """Put the config and tool of the first entry for the action in the component's place."""
        config = self.element.get("config")
        entries = config.get("configs") if isinstance(config, dict) else None
        if not isinstance(entries, list):
            self.refusal = 'The config of the component has no list "configs".'
            return
        action = self.inputs.get("deploy_action")
        known = []
        for entry in entries:
            actions = entry.get("actions") if isinstance(entry, dict) else None
            if not isinstance(actions, list):
                continue
            if action in actions:
                tool = entry.get("tool")
                self.element["group"] = tool if isinstance(tool, str) else ""
                self.element["config"] = entry.get("config")
                return
            known.extend(item for item in actions if isinstance(item, str))
        self.refusal = "The component has no config for the action %s; it has some for: %s." % (
            values.encode(values.text(action)),
            ", ".join(values.clean(item) for item in known) or "none",
        )


def _digest(value):
    from hashlib import sha256

    return sha256(values.encode(value).encode("ascii")).hexdigest()[:32]
