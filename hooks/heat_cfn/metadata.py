"""The metadata of the resource, from Heat's cfn API or a copy on the disk.

The request is that of boto for heat-cfntools: DescribeStackResource with ContentType=JSON,
signed with signature version 2 (HMAC-SHA256 over verb, host with port, path and sorted query).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import urllib.parse
from configparser import ConfigParser, Error
from typing import Any, NamedTuple

from heat_config.address import Target

from heat_cfn import web
from heat_cfn.problems import CfnError

STATE = "/var/lib/heat-cfntools"
CACHE = "/var/cache/heat-cfntools"
ANSWER_LIMIT = 64 << 20  # bytes


class Credentials(NamedTuple):
    """An EC2 key pair of the resource's stack user, made by Heat."""

    access_key: str
    secret_key: str


def state_path(name: str) -> str:
    """Return the path of a file that Heat's user data leaves on the machine."""
    return os.path.join(os.environ.get("HEAT_CFN_STATE_DIR", STATE), name)


def cache_path(name: str) -> str:
    """Return the path of a file in the cache of these commands."""
    return os.path.join(os.environ.get("HEAT_CFN_CACHE_DIR", CACHE), name)


def last_path(resource: str | None) -> str:
    """Return the path of the metadata last seen of this resource."""
    name = "last_metadata"
    if resource:
        name += "_" + re.sub(r"[^0-9A-Za-z_.-]", "_", resource)
    return cache_path(name)


def kept(resource: str | None = None) -> Any:
    """Return the metadata on disk: the file named by HEAT_CFN_INIT_METADATA, else the first of
    ``last_metadata_<resource>``, ``last_metadata`` and ``cfn-init-data`` that can be read.

    :raises CfnError: when there is none, or it is not JSON.
    """
    named = os.environ.get("HEAT_CFN_INIT_METADATA")
    paths = (
        [named] if named else [last_path(resource), last_path(None), state_path("cfn-init-data")]
    )
    for path in paths:
        try:
            with open(path, encoding="utf-8") as file:
                return json.load(file)
        except OSError:
            continue
        except (ValueError, RecursionError):
            raise CfnError(f'the metadata in "{path}" is not JSON') from None
    tried = " and ".join(f'"{path}"' for path in dict.fromkeys(paths))
    raise CfnError(
        f"there is no metadata: {tried} cannot be read, and without --access-key and --secret-key "
        "Heat is not asked"
    )


def previous(resource: str | None) -> Any:
    """Return the metadata of this resource as it was last seen, or None."""
    try:
        with open(last_path(resource), encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError, RecursionError):
        return None


def keep(metadata: Any, resource: str | None) -> None:
    """Keep the metadata for the next time, readable by root alone."""
    from heat_config import files

    try:
        path = last_path(resource)
        files.make_directory(os.path.dirname(path))
        files.write_whole(path, json.dumps(metadata))
    except OSError as error:
        raise CfnError(f'the metadata cannot be kept in "{path}": {error.strerror}') from None


def describe(
    stack: str, resource: str, credentials: Credentials, url: str | None = None
) -> dict[str, Any]:
    """Request the metadata of a resource from Heat.

    :param url: the cfn API's address; by default the one that Heat's user data has left here.
    :raises CfnError: when Heat does not answer, refuses, or the answer is malformed.
    """
    server = web.check(url or metadata_server(), "the metadata server's address")
    # The address may lack the version. Once, since the pattern matches again at the end.
    server = re.sub(r"(/v1)?/*$", "/v1/", server, count=1)
    query = signed_query(
        "GET",
        server,
        {
            "Action": "DescribeStackResource",
            "StackName": stack,
            "LogicalResourceId": resource,
            "ContentType": "JSON",
        },
        credentials,
    )
    insecure = not verify_certificates()
    try:
        return unwrap(
            web.patiently(
                lambda: web.ask(f"{server}?{query}", insecure=insecure, limit=ANSWER_LIMIT)
            )
        )
    except web.Refused as error:
        hint = ""
        if error.status == 403:
            hint = (
                ": the keys are wrong, the stack is suspended, or they may not read that resource"
            )
        elif error.status == 400:
            hint = ": there is no such stack or resource"
        raise CfnError(f"Heat refused the metadata: {error}{hint}") from None


def unwrap(body: bytes) -> dict[str, Any]:
    """Return the metadata from the body of a DescribeStackResource answer in JSON."""
    try:
        value = json.loads(body)
        for key in ("Response", "Result"):
            value = value["DescribeStackResource" + key]
        value = value["StackResourceDetail"]["Metadata"]
        # The metadata is JSON text within the JSON, or the object itself.
        value = json.loads(value) if isinstance(value, str) else value
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CfnError("Heat's answer is not a description of a resource") from None
    if not isinstance(value, dict):
        raise CfnError("the metadata in Heat's answer is not a map")
    return value


def signed_query(verb: str, url: str, parameters: dict[str, str], keys: Credentials) -> str:
    """Return the query with its signature, version 2, as Keystone checks it."""
    target = Target(url)
    everything = {
        **parameters,
        "AWSAccessKeyId": keys.access_key,
        "SignatureVersion": "2",
        "SignatureMethod": "HmacSHA256",
    }
    # Keystone sorts and escapes in the same way before it compares.
    canonical = "&".join(
        f"{urllib.parse.quote(name, safe='')}={urllib.parse.quote(value, safe='-_~')}"
        for name, value in sorted(everything.items())
    )
    text = "\n".join((verb, target.authority, target.path, canonical))
    digest = hmac.new(keys.secret_key.encode(), text.encode(), hashlib.sha256).digest()
    signature = base64.b64encode(digest).decode()
    return canonical + "&Signature=" + urllib.parse.quote(signature, safe="")


def metadata_server() -> str:
    """Return the cfn API's address: from cfn-metadata-server, else from cfn-boto-cfg."""
    try:
        with open(state_path("cfn-metadata-server"), encoding="utf-8") as file:
            url = file.read().strip()
        if url:
            return url
    except (OSError, UnicodeDecodeError):
        pass
    boto = _boto()
    host = boto.get("cfn_region_endpoint")
    if host:
        scheme = "https" if boto.get("is_secure", "0").lower() in ("1", "true", "yes") else "http"
        # 8000 is the port of heat-api-cfn.
        return f"{scheme}://{host if ':' in host else host + ':8000'}/v1/"
    path = state_path("cfn-metadata-server")
    raise CfnError(
        f'the address of Heat\'s cfn API is not known: "{path}" cannot be read; give it with --url'
    )


def verify_certificates() -> bool:
    """Return whether Heat's user data requires verification of the API's certificate."""
    # heat.conf: instance_connection_https_validate_certificates.
    text = _boto().get("https_validate_certificates", "1")
    return text.lower() not in ("0", "false", "no")


def _boto() -> dict[str, str]:
    parser = ConfigParser(interpolation=None, strict=False)
    try:
        parser.read(state_path("cfn-boto-cfg"), encoding="utf-8")
        return dict(parser["Boto"])
    except (Error, KeyError, UnicodeDecodeError):
        return {}


def credentials_from(path: str) -> Credentials:
    """Read ``AWSAccessKeyId=`` and ``AWSSecretKey=`` from a credential file."""
    fields = {}
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                name, equals, value = line.partition("=")
                if equals:
                    fields[name.strip().lower()] = value.strip()
    except (OSError, UnicodeDecodeError):
        raise CfnError(f'the credential file "{path}" cannot be read') from None
    access = fields.get("awsaccesskeyid") or fields.get("aws_access_key_id")
    secret = fields.get("awssecretkey") or fields.get("aws_secret_access_key")
    if not access or not secret:
        raise CfnError(f'"{path}" must have the lines AWSAccessKeyId= and AWSSecretKey=')
    return Credentials(access, secret)
