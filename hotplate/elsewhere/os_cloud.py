"""A cloud of ``clouds.yaml``, by openstacksdk and python-heatclient; its errors are sentences."""

from __future__ import annotations

import contextlib
import logging
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from hotplate.elsewhere.refusals import refusal
from hotplate.errors import HostError, HotplateError, UsageError
from hotplate.events.log import EventLog

#: How long to wait for an answer, when ``clouds.yaml`` has no ``api_timeout``.
ANSWER_SECONDS = 60.0

UNAUTHORIZED, FORBIDDEN, TOO_LARGE, INTERNAL = 401, 403, 413, 500

#: The loggers of the clients. Without a handler, Python prints their warnings on the terminal; the
#: exceptions that follow say the same.
LOGGERS = ("keystoneauth", "openstack", "heatclient")


class OsCloud:
    """A remote cloud; also the cloud of :class:`hotplate.stacks.stack.Stack`.

    ::

        cloud = OsCloud.open("ours", EventLog())
        with cloud.translated("the images"):
            cloud.sdk.image.images()

    :param name: in ``clouds.yaml``.
    :ivar sdk: openstacksdk's ``Connection``.
    """

    def __init__(self, name: str, sdk: Any, events: EventLog) -> None:
        self.name = name
        self.sdk = sdk
        self.events = events
        self._heat: Any = None
        self._answered = threading.local()

    @classmethod
    def open(cls, name: str, events: EventLog) -> Self:
        """Find a cloud as the ``openstack`` command does, and log in.

        :raises UsageError: when ``clouds.yaml`` has no such cloud, or its credentials are refused.
        :raises HostError: when it cannot be reached, or has no Heat.
        """
        # Imported here: it takes half a second.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import openstack
        from openstack import exceptions

        for each in LOGGERS:
            logging.getLogger(each).addHandler(logging.NullHandler())
        try:
            sdk = openstack.connect(cloud=name, app_name="hotplate")
        except exceptions.ConfigException as error:
            raise _no_such_cloud(name, str(error)) from error
        self = cls(name, sdk, events)
        with self.translated("a token"):
            session = sdk.session
            self._check_files(session.verify, session.cert)
            # python-heatclient's exceptions have no headers of an answer.
            session.session.hooks["response"].append(self._note_request_id)
            if session.timeout is None:
                session.timeout = ANSWER_SECONDS
            session.get_token()
            if not self.heat().http_client.get_endpoint():
                raise HostError(f'the cloud "{name}" has no orchestration service (Heat)')
        return self

    def heat(self) -> Any:
        """Return python-heatclient (v1)."""
        if self._heat is None:
            from heatclient import client

            config = self.sdk.config
            self._heat = client.Client(
                "1",
                session=self.sdk.session,
                service_type="orchestration",
                interface=config.get_interface("orchestration") or "public",
                region_name=config.get_region_name("orchestration"),
                endpoint_override=config.get_endpoint("orchestration"),
            )
        return self._heat

    def find(self, kind: str, name: str) -> Any:
        """Return a resource of openstacksdk by its name or id.

        :param kind: "image" or "network".
        :raises UsageError: when there is none, or several.
        """
        from openstack import exceptions

        try:
            with self.translated(f"its {kind}s"):
                found = getattr(getattr(self.sdk, kind), f"find_{kind}")(name)
        except HostError as error:
            if isinstance(error.__cause__, exceptions.DuplicateResource):
                raise UsageError(
                    f'the cloud "{self.name}" has several {kind}s "{name}"',
                    hint="name one by its id",
                ) from error
            raise
        if found is None:
            raise UsageError(
                f'the cloud "{self.name}" has no {kind} "{name}"',
                hint=f"openstack --os-cloud {self.name} {kind} list",
            )
        return found

    @contextlib.contextmanager
    def translated(self, what: str) -> Iterator[None]:
        """Turn the clients' exceptions in the block into an error of one sentence.

        :param what: the request, as a noun.
        :raises HotplateError: with the cloud's answer, and of the kind of its cause.
        """
        from heatclient import exc
        from keystoneauth1 import exceptions as auth
        from openstack import exceptions as sdk

        try:
            yield
        except (auth.ClientException, sdk.SDKException, exc.HTTPException) as error:
            raise self.error_of(error, what) from error

    def error_of(self, error: Exception, what: str) -> HotplateError:
        """Return a client's exception as an error of one sentence."""
        from keystoneauth1 import exceptions as auth
        from openstack import exceptions as sdk

        words = one_line(error)
        status = status_of(error)
        url = str((self.sdk.config.auth or {}).get("auth_url", ""))
        if refused := refusal(self.name, words):
            return refused
        unreachable = (auth.ConnectionError, auth.DiscoveryFailure, sdk.EndpointNotFound)
        if isinstance(error, unreachable):
            return HostError(
                f'the cloud "{self.name}" cannot be reached at "{url}": {words}',
                hint=f"curl -i {url}",
            )
        if isinstance(error, (auth.EndpointNotFound, auth.EmptyCatalog)):
            return HostError(f'the cloud "{self.name}" lacks a service: {words}')
        if status == UNAUTHORIZED:
            return UsageError(
                f'the cloud "{self.name}" refuses the credentials of clouds.yaml',
                hint=f"openstack --os-cloud {self.name} token issue",
            )
        if status == FORBIDDEN:
            return UsageError(
                f'the user of clouds.yaml has no right to {what} in the cloud "{self.name}": '
                f"{words}"
            )
        if status == TOO_LARGE:
            return HostError(f'the cloud "{self.name}" has no room for {what}: {words}')
        kind = str(self.sdk.config.config.get("auth_type"))
        if status == INTERNAL and "applicationcredential" in kind:
            # Keystone's "Delegated tokens cannot manage trusts" is in Heat's log only.
            return UsageError(
                f'the cloud "{self.name}" does not give {what}{self._request()}: {words}; Heat '
                "makes a trust for the user, which Keystone refuses to application credentials",
                hint="a user's password in clouds.yaml; or, where Keystone allows it to make "
                "trusts, openstack application credential create --unrestricted",
            )
        if isinstance(error, (auth.ClientException, sdk.ConfigException)) and status == 0:
            return UsageError(f'the cloud "{self.name}" cannot be used as it is set up: {words}')
        request = self._request() if status >= INTERNAL else ""
        return HostError(f'the cloud "{self.name}" does not give {what}{request}: {words}')

    # -- inside ----------------------------------------------------------------------------------

    def _check_files(self, *named: object) -> None:
        """Check the files of TLS, at which requests fails with an OSError.

        :raises UsageError: when one is not there.
        """
        for each in named:
            for path in each if isinstance(each, tuple) else (each,):
                if isinstance(path, str) and not Path(path).exists():
                    raise UsageError(
                        f'the cloud "{self.name}" of clouds.yaml names the file "{path}", which '
                        "does not exist",
                        hint="cacert:, cert: and key: of that cloud",
                    )

    def _note_request_id(self, answer: Any, *_: object, **__: object) -> None:
        """Note the id by which the cloud's logs have this thread's last request."""
        self._answered.id = answer.headers.get("x-openstack-request-id", "")

    def _request(self) -> str:
        """Return the id of this thread's last request in brackets, "" when it had none."""
        identity = getattr(self._answered, "id", "")
        return f" ({identity})" if identity else ""


def status_of(error: Exception) -> int:
    """Return the HTTP status of a client's exception, 0 when there is none."""
    for name in ("http_status", "status_code", "code"):
        value = getattr(error, name, None)
        if isinstance(value, int):
            return value
    return 0


def one_line(error: object) -> str:
    """Return an exception's message as a line of bounded length."""
    words = " ".join(str(error).removeprefix("ERROR: ").split())
    return words[:400] or type(error).__name__


def _no_such_cloud(name: str, words: str) -> UsageError:
    from openstack.config import OpenStackConfig

    config = OpenStackConfig()
    # The SDK makes up this one when the file names none.
    names = sorted(set(config.get_cloud_names()) - {"defaults"})
    if name in names:
        return UsageError(f'the cloud "{name}" of clouds.yaml cannot be used: {one_line(words)}')
    others = f"it has {', '.join(names)}" if names else "there is none, or it is empty"
    return UsageError(
        f'there is no cloud "{name}" in clouds.yaml; {others}',
        hint="it is sought in the current directory, ~/.config/openstack and /etc/openstack, or "
        "named by OS_CLIENT_CONFIG_FILE",
    )
