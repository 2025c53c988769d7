"""Users, projects, keys, tokens and trusts: the parts of Keystone that Heat and guests use."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from typing import Any

from cryptography.fernet import Fernet, InvalidToken

from hotplate.cloud.database.store import Store
from hotplate.cloud.http.addresses import HOST_SERVICES, REGION, Side, guest_base
from hotplate.cloud.http.rest import naive_time
from hotplate.cloud.keystone.application_credentials import (
    ApplicationCredential,
    ApplicationCredentials,
)

DEFAULT_DOMAIN = "default"
STACK_DOMAIN = "heat"
STACK_USER_ROLE = "heat_stack_user"
#: The names of the domains, by their ids.
DOMAINS = {DEFAULT_DOMAIN: "Default", STACK_DOMAIN: "heat"}

#: service -> (type in the catalogue, path after the base URL); ``%s`` is the project.
_CATALOG: dict[str, tuple[str, str]] = {
    "keystone": ("identity", "/v3"),
    "heat": ("orchestration", "/v1/%s"),
    "cfn": ("cloudformation", "/v1"),
    "swift": ("object-store", "/v1/AUTH_%s"),
    "zaqar": ("messaging", ""),
    "zaqar-websocket": ("messaging-websocket", ""),
    "nova": ("compute", "/v2.1"),
    "neutron": ("network", ""),
    "glance": ("image", ""),
}


class IdentityError(Exception):
    """The request is refused; ``str()`` is Keystone's message, by default without a reason."""

    def __init__(self, message: str = "The request you have made requires authentication.") -> None:
        super().__init__(message)


@dataclass(frozen=True)
class User:
    """A user of the cloud's owner, or one that Heat created for a server or deployment."""

    id: str
    name: str
    domain: str
    project: str
    roles: tuple[str, ...]
    enabled: bool = True


@dataclass(frozen=True)
class AccessKey:
    """An EC2 key pair; the three fields Heat reads are ``id``, ``access`` and ``secret``."""

    id: str
    access: str
    secret: str
    user: str
    project: str


@dataclass(frozen=True)
class Credentials:
    """The login of the owner of the cloud."""

    username: str
    password: str
    user_id: str
    project_id: str
    project_name: str
    domain: str = DEFAULT_DOMAIN


@dataclass(frozen=True)
class Grant:
    """The rights that a valid token gives."""

    user: User
    project: str
    roles: tuple[str, ...]
    issued: float
    expires: float
    trust: str = ""
    methods: tuple[str, ...] = ("password",)
    application: str = ""

    @property
    def is_delegated(self) -> bool:
        """True when it is not the user's own login, but that of a program for the user."""
        return not {"password", "token"}.issuperset(self.methods)


#: Lifetime of a token: Keystone's ``[token] expiration``.
TOKEN_SECONDS = 3600
#: Number of revoked tokens that are remembered; older ones are dropped.
MAX_REVOKED = 10_000


class Identity:
    """Keystone's state and rules, without HTTP.

    Tokens are Keystone's own Fernet tokens, with a key in the store: nothing is written when one is
    issued, and they are valid across a restart.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._key = store.setting("token_key", secrets.token_hex(32)).encode()
        # Fernet wants 32 bytes in URL-safe base64: the hash of the key has that length.
        self._fernet = Fernet(base64.urlsafe_b64encode(hashlib.sha256(self._key).digest()))
        self._revoked: dict[bytes, float] = {}
        self.applications = ApplicationCredentials(store, self._digest)
        #: Service -> its URL on loopback (``http://127.0.0.1:PORT``), for those that listen.
        self.host: Mapping[str, str] = {}
        #: Clock skew of this Keystone in seconds, read at each check.
        self.skew: Callable[[], float] = lambda: 0.0
        self.owner = self._bootstrap("hotplate", ("member", "reader"))
        self.service = self._bootstrap("heat", ("service",))

    # -- users and projects --------------------

    def _bootstrap(self, name: str, roles: tuple[str, ...]) -> Credentials:
        # The store keeps the first value, so a cloud that is started again has the same users.
        password = self._store.setting(f"password_{name}", secrets.token_urlsafe(18))
        user_id = self._store.setting(f"user_{name}", uuid.uuid4().hex)
        project = self._store.setting(f"project_{name}", uuid.uuid4().hex)
        if self.user(user_id) is None:
            self._store.insert("hotplate_project", project, name, DEFAULT_DOMAIN)
            self._insert_user(User(user_id, name, DEFAULT_DOMAIN, project, roles), password)
        return Credentials(name, password, user_id, project, name)

    def _insert_user(self, user: User, password: str) -> None:
        self._store.insert(
            "hotplate_user",
            user.id,
            user.name,
            user.domain,
            user.project,
            self._digest(password) if password else "",
            json.dumps(user.roles),
            int(user.enabled),
        )

    def _digest(self, password: str) -> str:
        # The passwords are long and random, for one run; the key protects them in a copy.
        return hmac.new(self._key, password.encode(), hashlib.sha256).hexdigest()

    def create_project(self, name: str) -> str:
        """Create a project in the stack domain; return its id."""
        project = uuid.uuid4().hex
        self._store.insert("hotplate_project", project, name, STACK_DOMAIN)
        return project

    def delete_project(self, project: str) -> None:
        """Delete a project of the stack domain."""
        self._store.delete("hotplate_project", id=project, domain=STACK_DOMAIN)

    def project_name(self, project: str) -> str:
        """Return the name of a project, or its id when it is unknown."""
        row = self._store.first("hotplate_project", id=project)
        return str(row["name"]) if row else project

    def find_project(self, name: str) -> str:
        """Return the id of the project called ``name``."""
        row = self._store.first("hotplate_project", name=name)
        if row is None:
            raise IdentityError
        return str(row["id"])

    def create_stack_user(self, name: str, project: str, password: str | None) -> str:
        """Create a stack user, as Heat does for a server or a deployment; return its id."""
        user_id = uuid.uuid4().hex
        # Keystone's limit; Heat keeps the end of a longer name, too (``_get_username``).
        user = User(user_id, name[-255:], STACK_DOMAIN, project, (STACK_USER_ROLE,))
        self._insert_user(user, password or "")
        return user_id

    def delete_user(self, user_id: str) -> None:
        """Delete a stack user and its keys."""
        for table in ("hotplate_key", "hotplate_application"):
            self._store.delete(table, user=user_id)
        self._store.delete("hotplate_user", id=user_id)

    def enable_user(self, user_id: str, *, enabled: bool) -> None:
        """Enable or disable a stack user, as Heat does at resume and suspend."""
        self._store.write(
            "UPDATE hotplate_user SET enabled = ? WHERE id = ?", int(enabled), user_id
        )

    def user(self, user_id: str) -> User | None:
        """Return the user with that id."""
        row = self._store.first("hotplate_user", id=user_id)
        if row is None:
            return None
        return User(
            row["id"],
            row["name"],
            row["domain"],
            row["project"],
            tuple(json.loads(row["roles"])),
            bool(row["enabled"]),
        )

    def _enabled(self, user_id: str) -> User:
        """Return the user with that id if it is enabled.

        :raises IdentityError: otherwise.
        """
        user = self.user(user_id)
        if user is None or not user.enabled:
            raise IdentityError
        return user

    def find_user(self, name: str) -> User | None:
        """Return the user with that name."""
        row = self._store.first("hotplate_user", name=name)
        return self.user(row["id"]) if row else None

    def check_password(self, user: User | None, password: str) -> User:
        """Return ``user`` if it is enabled and has this password.

        :raises IdentityError: otherwise, without the reason.
        """
        if user is None or not user.enabled:
            raise IdentityError
        row = self._store.first("hotplate_user", id=user.id)
        # A user that was created without a password has "", which is the digest of none.
        stored = str(row["password"]) if row else ""
        # In constant time, as every comparison with a secret.
        if not hmac.compare_digest(stored, self._digest(password)):
            raise IdentityError
        return user

    # -- EC2 keys ---------------------------------------------------------------------------

    def create_key(self, user: str, project: str) -> AccessKey:
        """Create an EC2 key pair for a user in a project."""
        key = AccessKey(uuid.uuid4().hex, uuid.uuid4().hex, uuid.uuid4().hex, user, project)
        self._store.insert("hotplate_key", *astuple(key))
        return key

    def key(self, *, access: str = "", key_id: str = "") -> AccessKey | None:
        """Return the key pair with that access key or id."""
        row = self._store.row(
            "SELECT * FROM hotplate_key WHERE access = ? OR id = ?", access, key_id
        )
        return AccessKey(*row) if row else None

    def keys_of(self, user: str) -> list[AccessKey]:
        """Return the key pairs of a user, oldest first."""
        return [AccessKey(*row) for row in self._store.find("hotplate_key", user=user)]

    def delete_key(self, key_id: str) -> None:
        """Delete a key pair."""
        self._store.delete("hotplate_key", id=key_id)

    def check_ec2(self, credentials: dict[str, Any], *, ttl: int) -> Grant:
        """Return the grant of a request by its EC2 signature.

        :param credentials: the credentials that Heat would send to ``/v3/ec2tokens``.
        :param ttl: seconds after its ``Timestamp`` in which a signature is valid, 0 for ever.
        :raises IdentityError: with the messages of Keystone's ``ec2tokens``.
        """
        from keystoneclient.contrib.ec2 import utils as ec2

        key = self.key(access=str(credentials.get("access", "")))
        if key is None:
            raise IdentityError("EC2 access key not found.")
        signature = credentials.get("signature")
        if not signature:
            raise IdentityError("EC2 signature not supplied.")
        host = str(credentials.get("host", ""))
        # Keystone tries again without the port, because old botos leave it out.
        tried = [credentials, {**credentials, "host": host.partition(":")[0]}]
        if not any(
            self._matches(ec2.Ec2Signer(key.secret), each, str(signature)) for each in tried
        ):
            raise IdentityError("Invalid EC2 signature.")
        if ttl:
            self._check_timestamp(dict(credentials.get("params") or {}), ttl)
        # Heat disables the users of a suspended stack: their keys are refused, too.
        user = self._enabled(key.user)
        now = time.time()
        return Grant(
            user, key.project, user.roles, now, now + TOKEN_SECONDS, methods=("ec2credential",)
        )

    @staticmethod
    def _matches(signer: Any, credentials: dict[str, Any], signature: str) -> bool:
        try:
            made = signer.generate(credentials)
        except Exception:  # the signer raises bare Exceptions for bad input
            return False
        return hmac.compare_digest(str(made).encode(), signature.encode())

    def _check_timestamp(self, params: dict[str, object], ttl: int) -> None:
        # Version 2 of the signature has Timestamp, version 4 X-Amz-Date without punctuation.
        stamp = str(params.get("Timestamp") or params.get("X-Amz-Date") or "")
        # As in Keystone's _check_timestamp(): a signer may leave it out.
        if not stamp:
            return
        form = "%Y-%m-%dT%H:%M:%SZ" if "-" in stamp else "%Y%m%dT%H%M%SZ"
        try:
            made = datetime.strptime(stamp, form).replace(tzinfo=UTC).timestamp()
        except ValueError:
            raise IdentityError("Credential timestamp is invalid.") from None
        if made + ttl < time.time() + self.skew():
            raise IdentityError("EC2 signature has expired.")

    # -- trusts --------------------

    def create_trust(self, trustor: str, project: str, roles: tuple[str, ...]) -> str:
        """Let Heat act for ``trustor`` in ``project``; return the trust's id."""
        trust = uuid.uuid4().hex
        trustee = self.service.user_id
        self._store.insert("hotplate_trust", trust, trustor, trustee, project, json.dumps(roles))
        return trust

    def delete_trust(self, trust: str) -> None:
        """Delete a trust."""
        self._store.delete("hotplate_trust", id=trust)

    # -- tokens --------------------

    def grant(
        self, user: User, project: str = "", *, method: str = "password", trust: str = ""
    ) -> Grant:
        """Return the rights of ``user`` in ``project``, or by ``trust`` those of the trustor.

        :raises IdentityError: when the user has none there.
        """
        now = time.time()
        expires = now + TOKEN_SECONDS
        if trust:
            row = self._store.first("hotplate_trust", id=trust)
            # The trustee is Heat's own user; nobody else can use the trust.
            if row is None or row["trustee"] != user.id:
                raise IdentityError
            trustor = self._enabled(row["trustor"])
            roles = tuple(json.loads(row["roles"]))
            return Grant(trustor, row["project"], roles, now, expires, trust, (method,))
        if project and project != user.project:
            raise IdentityError
        return Grant(user, user.project, user.roles, now, expires, "", (method,))

    def grant_by_application(self, credential: ApplicationCredential | None, secret: str) -> Grant:
        """Return the rights of an application credential.

        :raises IdentityError: when the secret is not its own, or it has expired.
        """
        if credential is None or not self.applications.check(credential, secret):
            raise IdentityError
        user, now = self._enabled(credential.user), time.time()
        return Grant(
            user,
            credential.project,
            credential.roles,
            now,
            min(now + TOKEN_SECONDS, credential.ends),
            methods=("application_credential",),
            application=credential.id,
        )

    def is_restricted(self, grant: Grant) -> bool:
        """Return True for an application credential that manages no others."""
        application = self.applications.get(grant.application)
        return application is not None and not application.unrestricted

    def token(self, grant: Grant) -> str:
        """Return the token for ``grant``."""
        body = json.dumps(
            [
                grant.user.id,
                grant.project,
                grant.roles,
                grant.issued,
                grant.expires,
                grant.trust,
                grant.methods,
                grant.application,
                # A nonce: tokens are revoked by their contents, so no two may be equal.
                secrets.token_hex(4),
            ],
            separators=(",", ":"),
        ).encode()
        # Without padding, as Keystone's.
        return self._fernet.encrypt(body).decode().rstrip("=")

    def read_token(self, token: str) -> Grant:
        """Return the grant of ``token``.

        :raises IdentityError: when it is not one of ours, has expired, or its user is disabled.
        """
        refused = IdentityError("This is not a recognized Fernet token")
        body = self._body(token)
        if body in self._revoked:
            raise refused
        fields = json.loads(body)
        user_id, project, roles, issued, expires, trust, methods, application, _nonce = fields
        user = self.user(user_id)
        if user is None or not user.enabled:
            raise refused
        if expires <= time.time() + self.skew():
            raise IdentityError("The token has expired.")
        if trust and not self._store.first("hotplate_trust", id=trust):
            raise refused
        if application and not self.applications.get(application):
            raise refused
        return Grant(
            user, project, tuple(roles), issued, expires, trust, tuple(methods), application
        )

    def revoke(self, token: str) -> None:
        """Revoke a token of ours for as long as this cloud runs.

        :raises IdentityError: as :meth:`read_token`.
        """
        grant, now = self.read_token(token), time.time()
        # An expired token is refused without an entry.
        kept = [(body, end) for body, end in self._revoked.items() if end > now]
        self._revoked = dict([*kept[1 - MAX_REVOKED :], (self._body(token), grant.expires)])

    def _body(self, token: str) -> bytes:
        """Return the contents of a token.

        :raises IdentityError: when it is not one of ours.
        """
        try:
            # The padding that token() strips.  A lone surrogate, which JSON can carry, has no
            # UTF-8: it becomes "?", and the token invalid.
            return self._fernet.decrypt((token + "=" * (-len(token) % 4)).encode(errors="replace"))
        except InvalidToken:
            raise IdentityError("This is not a recognized Fernet token") from None

    def describe(self, grant: Grant, side: Side, *, catalog: bool = True) -> dict[str, object]:
        """Return the body of a v3 token response, with the catalogue for ``side``."""
        # A stack user's project is one that Heat created in the stack domain.
        project_domain = STACK_DOMAIN if STACK_USER_ROLE in grant.roles else DEFAULT_DOMAIN
        token: dict[str, object] = {
            "methods": list(grant.methods),
            "user": {
                "id": grant.user.id,
                "name": grant.user.name,
                "domain": {"id": grant.user.domain, "name": DOMAINS[grant.user.domain]},
                "password_expires_at": None,
            },
            "project": {
                "id": grant.project,
                "name": self.project_name(grant.project),
                "domain": {"id": project_domain, "name": DOMAINS[project_domain]},
            },
            "roles": [{"id": role, "name": role} for role in grant.roles],
            "is_domain": False,
            "audit_ids": [hashlib.sha256(f"{grant.issued}".encode()).hexdigest()[:22]],
            "issued_at": naive_time(grant.issued) + "Z",
            "expires_at": naive_time(grant.expires) + "Z",
        }
        if application := self.applications.get(grant.application):
            token["application_credential"] = {
                "id": application.id,
                "name": application.name,
                "restricted": not application.unrestricted,
            }
        if grant.trust:
            token["OS-TRUST:trust"] = {
                "id": grant.trust,
                "impersonation": True,
                "trustor_user": {"id": grant.user.id},
                "trustee_user": {"id": self.service.user_id},
            }
            # Heat acts by trusts: its catalogue has loopback URLs as internal ones, and guests' as
            # public.
            side = Side.ENGINE
        if catalog:
            token["catalog"] = self.catalog(grant.project, side)
        return {"token": token}

    def base(self, service: str, side: Side) -> str:
        """Return the base URL of a service for ``side``, without a trailing slash."""
        return guest_base(service) if side is Side.GUEST else self.host[service]

    def catalog(self, project: str, side: Side) -> list[dict[str, Any]]:
        """Return the services and their URLs for ``side``."""
        inner = Side.GUEST if side is Side.GUEST else Side.HOST
        public = Side.HOST if side is Side.HOST else Side.GUEST
        entries = []
        for service, (kind, suffix) in _CATALOG.items():
            if service not in self.host:
                continue
            outer = public
            # Guests cannot reach these, so even Heat's public URL of them is the host's.
            if service in HOST_SERVICES:
                if side is Side.GUEST:
                    continue
                outer = Side.HOST
            tail = suffix % project if "%s" in suffix else suffix
            endpoints = [
                {
                    "id": hashlib.sha256(f"{service}{interface}".encode()).hexdigest()[:32],
                    "interface": interface,
                    "region": REGION,
                    "region_id": REGION,
                    "url": self.base(service, where) + tail,
                }
                for interface, where in (
                    ("public", outer),
                    ("internal", inner),
                    ("admin", inner),
                )
            ]
            entries.append(
                {
                    "id": hashlib.sha256(service.encode()).hexdigest()[:32],
                    "name": service,
                    "type": kind,
                    "endpoints": endpoints,
                }
            )
        return entries
