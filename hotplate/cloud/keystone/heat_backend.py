"""Heat's ``keystone_backend`` plug-in: the engine's access to Keystone, without HTTP.

Heat creates one for each request context by the name of the class, so the cloud that runs in this
process sets their identity here once.
"""

from __future__ import annotations

import weakref
from typing import Any

from hotplate.cloud.http.addresses import guest_base
from hotplate.cloud.keystone.identity import STACK_DOMAIN, AccessKey, Identity, IdentityError

NAME = f"{__name__}.KeystoneBackend"

_identity: Identity | None = None


def use(identity: Identity | None) -> None:
    """Set the identity of all :class:`KeystoneBackend` objects created later."""
    global _identity
    _identity = identity


class KeystoneBackend:
    """The methods of Heat's own ``KsClientWrapper`` that its resources and stacks call."""

    stack_domain_id = STACK_DOMAIN

    def __init__(self, context: object, *_: object) -> None:
        # Weak, as in Heat's own keystone client: the context holds its clients, and a strong
        # reference would make a cycle.
        self._context = weakref.ref(context)
        assert _identity is not None, "no cloud runs in this process"
        self._identity = _identity

    @property
    def context(self) -> Any:
        """The request context of this object."""
        context = self._context()
        assert context is not None
        return context

    @property
    def session(self) -> Any:
        """A keystoneauth session with the rights of the context."""
        return self.context.keystone_session

    @property
    def client(self) -> Any:
        """Keystone's own client, for look-ups of names in a template, such as projects."""
        from keystoneclient.v3 import client

        url = f"{self._identity.host['keystone']}/v3"
        return client.Client(session=self.session, endpoint_override=url)

    @property
    def v3_endpoint(self) -> str:
        """Keystone's URL for guests; Heat puts it into data that a guest reads."""
        return guest_base("keystone") + "/v3"

    def server_keystone_endpoint_url(self, fallback_endpoint: str) -> str:  # noqa: ARG002
        """Return Keystone's URL for servers."""
        return self.v3_endpoint

    # -- users and keys --------------------

    def create_stack_domain_project(self, stack_id: str) -> str:
        """Create a project for the users of one stack."""
        name = f"{self.context.project_id}-{stack_id}"
        # Keystone's limit on a name; Heat's own client cuts it at the same place.
        return self._identity.create_project(name[:64])

    def delete_stack_domain_project(self, project_id: str) -> None:
        self._identity.delete_project(project_id)

    def create_stack_domain_user(
        self, username: str, project_id: str, password: str | None = None
    ) -> str:
        """Create a user for one server or deployment."""
        return self._identity.create_stack_user(username, project_id, password)

    def delete_stack_user(self, user_id: str, project_id: str = "") -> None:  # noqa: ARG002
        self._identity.delete_user(user_id)

    def disable_stack_user(self, user_id: str, project_id: str = "") -> None:  # noqa: ARG002
        """Disable a user while its stack is suspended."""
        self._identity.enable_user(user_id, enabled=False)

    def enable_stack_user(self, user_id: str, project_id: str = "") -> None:  # noqa: ARG002
        self._identity.enable_user(user_id, enabled=True)

    delete_stack_domain_user = delete_stack_user
    disable_stack_domain_user = disable_stack_user
    enable_stack_domain_user = enable_stack_user

    def stack_domain_user_token(self, user_id: str, project_id: str, password: str) -> str:
        """Return a token with that user's rights."""
        user = self._identity.check_password(self._identity.user(user_id), password)
        return self._identity.token(self._identity.grant(user, project_id))

    def create_stack_domain_user_keypair(self, user_id: str, project_id: str) -> AccessKey:
        return self._identity.create_key(user_id, project_id)

    def delete_stack_domain_user_keypair(
        self,
        user_id: str,  # noqa: ARG002
        project_id: str,  # noqa: ARG002
        credential_id: str,
    ) -> None:
        self._identity.delete_key(credential_id)

    def get_ec2_keypair(
        self,
        credential_id: str | None = None,
        access: str | None = None,
        user_id: str | None = None,  # noqa: ARG002
    ) -> AccessKey | None:
        """Return the key pair with that id or access key."""
        return self._identity.key(access=access or "", key_id=credential_id or "")

    # -- trusts --------------------

    def create_trust_context(self) -> Any:
        """Return the context with a trust, so that the engine can act after the token expires."""
        from heat.common.context import RequestContext

        if self.context.trust_id:
            return self.context
        self._check_no_delegate()
        # Without overwrite=False oslo.context would make it the context of this thread.
        trust_context = RequestContext.from_dict(self.context.to_dict(), overwrite=False)
        trust_context.trust_id = self._identity.create_trust(
            self.context.user_id, self.context.project_id, tuple(self.context.roles)
        )
        trust_context.trustor_user_id = self.context.user_id
        return trust_context

    def _check_no_delegate(self) -> None:
        """Refuse a trust to application credentials and keys, as Keystone does since LP#2150089.

        :raises oslo_messaging.RemoteError: as the engine of a real Heat answers its API, which
            makes an "Internal Error" of it.
        """
        try:
            grant = self._identity.read_token(self.context.auth_token or "")
        except IdentityError:
            # It ended after Heat's API had accepted it.
            return
        if grant.is_delegated:
            # Only in a running cloud, which chooses the threading of Heat's libraries.
            from oslo_messaging import RemoteError

            raise RemoteError(
                "Forbidden",
                "You are not authorized to perform the requested action: Delegated tokens cannot "
                "manage trusts.",
            )

    def regenerate_trust_context(self) -> Any:
        """Return a context with a new trust that replaces the old one."""
        old = self.context.trust_id
        # create_trust_context() returns a context that has a trust as it is.
        self.context.trust_id = None
        context = self.create_trust_context()
        if old:
            self._identity.delete_trust(old)
        return context

    def delete_trust(self, trust_id: str) -> None:
        self._identity.delete_trust(trust_id)
