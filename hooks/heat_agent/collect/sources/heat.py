"""heat: a resource's metadata from Heat's own API, with a Keystone token."""

from __future__ import annotations

from heat_config.address import redacted

from .. import documents, keystone, web
from ..problems import NotConfigured, Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from heat_config.http1 import Answer

    from ..keystone import Token
    from . import Surroundings

    Documents = list[tuple[str, Any]]

NEEDED = ("auth_url", "password", "project_id", "user_id", "stack_id", "resource_name")
STACKS = "/stacks/"


class Heat:
    """Get the metadata of ``[heat] resource_name`` in ``stack_id``."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._options = surroundings.settings.heat
        self._keys = surroundings.settings.deployment_key
        self._client = surroundings.client
        self._warn = surroundings.warn
        self._keystone = keystone.of_user(surroundings.client, self._options)
        self._stack = ""

    def collect(self) -> Documents:
        for name in NEEDED:
            if not getattr(self._options, name):
                raise NotConfigured(f"[heat] {name} is not set")
        answer = self._keystone.authorized(self._ask)
        where = f'the answer of "{redacted(answer.url)}"'
        document = documents.decode_object(answer.body, where).get("metadata")
        if not isinstance(document, dict):
            raise Unavailable(f"{where} has metadata that is not a JSON object")
        return documents.explode("heat", document, self._keys, self._warn)

    def _ask(self, token: Token) -> Answer:
        from urllib.parse import quote

        base = keystone.endpoint(token, "orchestration", self._options.region_name)
        headers = {"X-Auth-Token": token.value, "Accept": "application/json"}
        stack = self._stack or self._options.stack_id
        # Heat sends "name/id". An id alone has to be looked up first.
        if "/" not in stack:
            answer = self._client.ask(
                f"{base}{STACKS}{quote(stack, safe='')}", headers=headers, follow=False
            )
            if answer.status == keystone.UNAUTHORIZED:
                return answer
            stack = self._stack = _named(web.accept(answer))
        name = quote(self._options.resource_name, safe="")
        # A stack from a redirect is quoted already, hence the "%".
        url = f"{base}{STACKS}{quote(stack, safe='/%')}/resources/{name}/metadata"
        return self._client.ask(url, headers=headers)


def _named(answer: Answer) -> str:
    """Return ``name/id`` from Heat's redirect of a request for a stack by its id alone.

    A stack user may look a stack up like that, but not follow the redirect.
    """
    _, _, stack = answer.headers.get("location", "").partition(STACKS)
    stack = stack.partition("?")[0]
    if "/" not in stack:
        raise Unavailable(f'"{redacted(answer.url)}" does not redirect to the stack')
    return stack
