"""cfn: DescribeStackResource of Heat's CloudFormation API, signed by an access key.

The signature is AWS's version 2, as in keystoneclient.contrib.ec2.utils; the answer is XML that
contains the metadata as JSON.
"""

from __future__ import annotations

from heat_config.address import redacted

from .. import documents, web
from ..problems import NotConfigured, Unavailable
from ..signature import hmac_sha256
from . import reading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from heat_config.http1 import Answer

    from . import Surroundings

    Documents = list[tuple[str, Any]]

NEEDED = ("access_key_id", "secret_access_key", "stack_name", "path")
PLACE = ("DescribeStackResourceResult", "StackResourceDetail")


class Cfn:
    """Request each ``[cfn] path`` and merge their keys; keys of later paths win."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._options = surroundings.settings.cfn
        self._client = surroundings.client
        self._warn = surroundings.warn

    def collect(self) -> Documents:
        url = self._options.metadata_url or self._hinted()
        for name in NEEDED:
            if not getattr(self._options, name):
                raise NotConfigured(f"[cfn] {name} is not set")
        document = {}
        for path in self._options.path:
            resource, _, rest = path.partition(".")
            field, *keys = rest.split(".")
            if not field:
                raise NotConfigured("[cfn] path is not of the form resource.field")
            document.update(self._one(url, resource, field, keys))
        return documents.explode("cfn", document, self._options.deployment_key, self._warn)

    def _hinted(self) -> str:
        data = reading.whole(self._options.heat_metadata_hint or "")
        base = (data or b"").decode("utf-8", "replace").strip()
        if not base:
            raise NotConfigured("[cfn] metadata_url is not set")
        return base + "/v1/"

    def _one(self, url: str, resource: str, field: str, keys: list[str]) -> dict[str, Any]:
        where = f'the answer of "{redacted(url)}"'
        # No Timestamp, as upstream: Keystone refuses old ones, so the guest's clock would matter.
        signed = signed_url(
            url,
            {
                "Action": "DescribeStackResource",
                "StackName": self._options.stack_name,
                "LogicalResourceId": resource,
                "AWSAccessKeyId": self._options.access_key_id,
                "SignatureVersion": "2",
                "SignatureMethod": "HmacSHA256",
            },
            self._options.secret_access_key,
        )
        answer = self._client.ask(
            signed,
            headers={"Content-Type": "application/json"},
            seconds=self._options.timeout,
            ca_file=self._options.ca_certificate or None,
        )
        web.accept(answer)
        value = documents.decode(field_of(answer, field, where), where)
        for key in keys:
            if not isinstance(value, dict) or key not in value:
                raise Unavailable(f"{where} does not have all keys of [cfn] path")
            value = value[key]
        if not isinstance(value, dict):
            raise Unavailable(f"{where} has metadata that is not a JSON object")
        return value


def signed_url(url: str, parameters: dict[str, str], secret: str) -> str:
    """Return *url* with *parameters* and their signature for GET. Raises Unavailable."""
    from binascii import b2a_base64
    from urllib.parse import quote, urlencode, urlsplit

    try:
        parts = urlsplit(url)
    except ValueError:
        raise Unavailable(f'"{redacted(url)}" is not a URL that can be asked') from None
    # As in keystoneclient's Ec2Signer._canonical_qs().
    query = "&".join(
        f"{quote(name, safe='')}={quote(value, safe='-_~')}"
        for name, value in sorted(parameters.items())
    )
    # The host has its port, as in the URL. Keystone tries once more without it.
    text = "\n".join(("GET", parts.netloc, parts.path, query))
    digest = hmac_sha256(secret.encode("utf-8"), text.encode("utf-8"))
    signature = b2a_base64(digest, newline=False).decode("ascii")
    joined = "&" if parts.query else "?"
    return url + joined + urlencode({**parameters, "Signature": signature})


def field_of(answer: Answer, field: str, where: str) -> str:
    """Return the text of the element *field* in a DescribeStackResource answer. Raises Unavailable.

    Namespaces are ignored. A document type is refused: entities could expand without bound.
    """
    import pyexpat

    kind = answer.headers.get("content-type", "").lower()
    charset = kind.partition("charset=")[2].partition(";")[0].strip("\"' ")
    encoding = web.CHARSETS.get(charset) if charset else None
    # The charset of the header counts more than that of the XML declaration.
    parser = pyexpat.ParserCreate(encoding)
    # One call for each run of text; otherwise one for each line and each entity.
    parser.buffer_text = True
    path: list[str] = []
    texts: list[str] = []
    wanted = [*PLACE, field]
    state = {"at": False, "seen": False}

    def start(name: str, _attributes: object) -> None:
        path.append(name.rpartition(":")[2])
        if len(path) > 100:
            raise Unavailable(f"{where} is nested too deeply")
        # As in ElementTree, only the text before any child element counts.
        # The name of the root does not count.
        state["at"] = path[1:] == wanted and not state["seen"]
        state["seen"] = state["seen"] or state["at"]

    def end(_name: str) -> None:
        path.pop()
        state["at"] = False

    def characters(text: str) -> None:
        if state["at"]:
            texts.append(text)

    def refuse(*_arguments: object) -> None:
        raise Unavailable(f"{where} contains a document type")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = characters
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(answer.body, True)
    except (pyexpat.ExpatError, LookupError, ValueError):  # the last two: its encoding
        raise Unavailable(f"{where} is not XML") from None
    if not state["seen"]:
        raise Unavailable(f'{where} has no element "{field}"')
    return "".join(texts)
