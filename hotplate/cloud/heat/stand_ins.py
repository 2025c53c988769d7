"""Resources of services that do not run here: accepted, checked against their schema, done at once.

A template keeps its volumes and load balancers; its ``get_attr`` gets a harmless value.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable
from typing import Any

from heat.engine import attributes, constraints, resource

#: What runs for real, by the beginning of the type's name.
REAL = (
    "OS::Heat::",
    "OS::Nova::Server",
    "OS::Nova::KeyPair",
    "OS::Nova::ServerGroup",
    "OS::Swift::",
    "OS::Zaqar::",
    "AWS::CloudFormation::",
    "AWS::AutoScaling::",
    "AWS::EC2::Instance",
    "AWS::IAM::",
)
#: What Neutron keeps, and nobody enforces: no packet leaves the cloud or is stopped by a group.
#: Heat makes a floating address of an AWS::EC2::EIP.
NOT_ENFORCED = frozenset(
    (
        "AWS::EC2::EIP",
        "AWS::EC2::EIPAssociation",
        "OS::Neutron::FloatingIP",
        "OS::Neutron::FloatingIPAssociation",
        "OS::Neutron::RouterGateway",
        "OS::Neutron::SecurityGroup",
        "OS::Neutron::SecurityGroupRule",
    )
)
#: What a guest notices only where servers have ports of Neutron.
LINKS = frozenset(
    f"OS::Neutron::{name}"
    for name in (
        "ExtraRoute",
        "ExtraRouteSet",
        "Net",
        "Port",
        "ProviderNet",
        "Router",
        "RouterInterface",
        "Subnet",
    )
)
#: What is for real, by the whole name.
EXACTLY = NOT_ENFORCED | LINKS | {"OS::Neutron::Quota", "OS::Neutron::SubnetPool"}
#: The services that are asked about a name in a template; before the dot of a constraint's own.
ASKED = frozenset(("glance", "heat", "nova", "zaqar"))
#: The constraints that Neutron is asked about; it has no resources of the other kinds.
CONSTRAINTS = frozenset(
    f"neutron.{name}"
    for name in ("network", "subnet", "subnetpool", "port", "router", "security_group")
)
#: Begins like a real one and is not.
NOT_REAL = ("OS::Zaqar::MistralTrigger",)

#: An address that is nobody's (RFC 5737).
ADDRESS = "192.0.2.10"


class StandIn(resource.Resource):  # type: ignore[misc]
    """Base of every stand-in; the schemas come from the type it stands in for."""

    requires_deferred_auth = False
    properties_schema: dict[str, object] = {}
    attributes_schema: dict[str, object] = {}

    @classmethod
    def is_service_available(cls, context: object) -> tuple[bool, str | None]:  # noqa: ARG003
        return True, None

    def handle_create(self) -> None:
        self.resource_id_set(str(uuid.uuid4()))

    def handle_update(self, json_snippet: object, tmpl_diff: object, prop_diff: object) -> None:
        """Accept it."""

    def handle_delete(self) -> None:
        """Nothing is left behind."""

    def handle_suspend(self) -> None:
        """Accept it."""

    def handle_resume(self) -> None:
        """Accept it."""

    def handle_check(self) -> None:
        """Do nothing: it is always there."""

    def handle_signal(self, details: object = None) -> None:
        """Accept it."""

    def get_live_state(self, resource_properties: object) -> dict[str, object]:  # noqa: ARG002
        return {}

    def get_reference_id(self) -> str:
        return str(self.resource_id if self.resource_id is not None else self.name)

    def _show_resource(self) -> dict[str, object]:
        return {"id": self.resource_id, "name": self.physical_resource_name()}

    def _resolve_attribute(self, name: str) -> Any:
        if name in self.properties_schema:
            given = self.properties.get(name)
            if given is not None:
                return given
        if name == "fixed_ips":
            return [{"ip_address": ADDRESS, "subnet_id": str(self.resource_id)}]
        lowered = name.lower()
        if "address" in lowered or lowered.endswith(("_ip", "publicip", "privateip")):
            return ADDRESS
        schema = self.attributes_schema.get(name)
        return {
            attributes.Schema.MAP: {},
            attributes.Schema.LIST: [],
            attributes.Schema.INTEGER: 0,
            attributes.Schema.BOOLEAN: True,
        }.get(getattr(schema, "type", None), self.physical_resource_name())


class _Accept(constraints.BaseCustomConstraint):  # type: ignore[misc]
    """A name of something that is not looked up."""

    def validate(self, value: object, context: object, template: object = None) -> bool:  # noqa: ARG002
        return True


def is_real(kind: str) -> bool:
    """Whether resources of the type ``kind`` do their work here."""
    return kind in EXACTLY or (kind.startswith(REAL) and kind not in NOT_REAL)


def not_there(stood_in: Iterable[str], *, networked: bool) -> set[str]:
    """Return the types of which a guest notices nothing.

    :param stood_in: what :func:`register` returned.
    :param networked: servers have ports of Neutron.
    """
    return {*stood_in, *NOT_ENFORCED, *(() if networked else LINKS)}


def all_types(environment: Any) -> list[str]:
    """Return every type that has a class, those included that Heat hides because they are old.

    :param environment: Heat's global environment.
    """
    from heat.engine.environment import ClassResourceInfo

    registry = environment.registry._registry
    return [kind for kind, info in registry.items() if isinstance(info, ClassResourceInfo)]


def register(environment: object) -> list[str]:
    """Put a stand-in in the place of every type that does not run here.

    :param environment: Heat's global environment.
    :return: the types stood in for.
    """
    # Heat warns of each type that is registered again; here that is the purpose.
    log = logging.getLogger("heat.engine.environment")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        return _register(environment)
    finally:
        log.setLevel(level)


def _register(environment: Any) -> list[str]:
    from heat.engine.resources import _get_mapping
    from heat.engine.resources.openstack.heat.none_resource import NoneResource

    stood_in = []
    for kind in all_types(environment):
        real = environment.get_class(kind)
        if is_real(kind):
            continue
        stood_in.append(kind)
        if issubclass(real, NoneResource):
            # Heat itself has it do nothing any more.
            continue
        made = type(
            f"StandIn_{kind.replace('::', '_')}",
            (StandIn,),
            {
                "properties_schema": dict(real.properties_schema),
                "attributes_schema": dict(real.attributes_schema),
                "support_status": real.support_status,
                "__doc__": f"Stands in for {kind}.",
            },
        )
        environment.register_class(kind, made)
    for name, _constraint in _get_mapping("heat.constraints"):
        # Not every constraint says whose client it asks: Octavia's have no resource_client_name.
        service, dot, _kind = name.partition(".")
        if dot and service not in ASKED and name not in CONSTRAINTS:
            environment.register_constraint(name, _Accept)
    return sorted(stood_in)
