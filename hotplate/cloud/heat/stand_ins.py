"""Stand-ins for resources of missing services: accepted, checked by their schema, done at once.

A template can keep its volumes and load balancers; ``get_attr`` of them gives a harmless value.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable
from typing import Any

from heat.engine import attributes, constraints, resource, translation
from heat.engine.resources.aws.ec2 import route_table, subnet
from heat.engine.resources.openstack.neutron import provider_net

#: Types that are real here, by the beginning of their names.
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
#: Types that Neutron stores without effect: no packet leaves the cloud, and no group stops one.
#: Heat makes resources of Neutron of AWS's.
NOT_ENFORCED = frozenset(
    (
        "AWS::EC2::EIP",
        "AWS::EC2::EIPAssociation",
        "AWS::EC2::InternetGateway",
        "AWS::EC2::SecurityGroup",
        "AWS::EC2::VPCGatewayAttachment",
        "OS::Neutron::FloatingIP",
        "OS::Neutron::FloatingIPAssociation",
        "OS::Neutron::RouterGateway",
        "OS::Neutron::SecurityGroup",
        "OS::Neutron::SecurityGroupRule",
        "OS::Neutron::Trunk",
    )
)
#: Types that a guest notices only if servers have ports of Neutron.
LINKS = frozenset(
    (
        "AWS::EC2::NetworkInterface",
        "AWS::EC2::RouteTable",
        "AWS::EC2::Subnet",
        "AWS::EC2::SubnetRouteTableAssociation",
        "AWS::EC2::VPC",
        "OS::Neutron::ExtraRoute",
        "OS::Neutron::ExtraRouteSet",
        "OS::Neutron::Net",
        "OS::Neutron::Port",
        "OS::Neutron::Router",
        "OS::Neutron::RouterInterface",
        "OS::Neutron::Subnet",
    )
)
#: Types that are real here, by the whole name.
EXACTLY = NOT_ENFORCED | LINKS | {"OS::Neutron::SubnetPool"}
#: Services that are asked about names in a template, by the prefix of a custom constraint.
ASKED = frozenset(("glance", "heat", "nova", "zaqar"))
#: Constraints about which Neutron is asked; it has no resources of the other kinds.
CONSTRAINTS = frozenset(
    f"neutron.{name}"
    for name in ("network", "subnet", "subnetpool", "port", "router", "security_group")
)
#: Types that match :data:`REAL`, but are not real.
NOT_REAL = ("OS::Zaqar::MistralTrigger",)

#: An address reserved for documentation (RFC 5737).
ADDRESS = "192.0.2.10"


class StandIn(resource.Resource):  # type: ignore[misc]
    """Base of every stand-in; the schemas come from the type that it replaces."""

    requires_deferred_auth = False
    properties_schema: dict[str, object] = {}
    attributes_schema: dict[str, object] = {}

    @classmethod
    def is_service_available(cls, context: object) -> tuple[bool, str | None]:  # noqa: ARG003
        return True, None

    def handle_create(self) -> None:
        self.resource_id_set(str(uuid.uuid4()))

    def _accept(self, *_: object) -> None:
        """Do nothing: there is nothing to change, to check or to delete."""

    handle_update = handle_delete = handle_suspend = handle_resume = _accept
    handle_check = handle_signal = _accept

    def get_live_state(self, resource_properties: object) -> dict[str, object]:  # noqa: ARG002
        return {}

    def get_reference_id(self) -> str:
        return str(self.resource_id if self.resource_id is not None else self.name)

    def _show_resource(self) -> dict[str, object]:
        return {"id": self.resource_id, "name": self.physical_resource_name()}

    def _resolve_attribute(self, name: str) -> Any:
        # The template's own value, when a property has that name.
        if name in self.properties_schema:
            given = self.properties.get(name)
            if given is not None:
                return given
        # An address, when the name promises one.
        if name == "fixed_ips":
            return [{"ip_address": ADDRESS, "subnet_id": str(self.resource_id)}]
        lowered = name.lower()
        if "address" in lowered or lowered.endswith(("_ip", "publicip", "privateip")):
            return ADDRESS
        # Otherwise a harmless value of the attribute's type, or the resource's name.
        schema = self.attributes_schema.get(name)
        return {
            attributes.Schema.MAP: {},
            attributes.Schema.LIST: [],
            attributes.Schema.INTEGER: 0,
            attributes.Schema.BOOLEAN: True,
        }.get(getattr(schema, "type", None), self.physical_resource_name())


class ProviderNet(provider_net.ProviderNet):  # type: ignore[misc]
    """A network of the project in place of one of the provider's, which is an administrator's."""

    #: Properties that Neutron takes from administrators only.
    ADMINS = (
        provider_net.ProviderNet.PROVIDER_NETWORK_TYPE,
        provider_net.ProviderNet.PROVIDER_PHYSICAL_NETWORK,
        provider_net.ProviderNet.PROVIDER_SEGMENTATION_ID,
        provider_net.ProviderNet.ROUTER_EXTERNAL,
        provider_net.ProviderNet.SHARED,
        provider_net.ProviderNet.TENANT_ID,
    )

    @classmethod
    def prepare_properties(cls, properties: Any, name: str) -> dict[str, Any]:
        return cls._of_user(super().prepare_properties(properties, name))

    def handle_update(self, json_snippet: Any, tmpl_diff: Any, prop_diff: dict[str, Any]) -> None:
        super().handle_update(json_snippet, tmpl_diff, self._of_user(prop_diff))

    @classmethod
    def _of_user(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if name not in cls.ADMINS}


class _InVpc(resource.Resource):  # type: ignore[misc]
    """Look up the VPC by name or id, as OS::Neutron:: types do with a network.

    A template may name one of the cloud that it was written for.
    """

    VPC_ID = "VpcId"

    def translation_rules(self, props: Any) -> list[Any]:
        return [
            translation.TranslationRule(
                props,
                translation.TranslationRule.RESOLVE,
                [self.VPC_ID],
                client_plugin=self.client_plugin(),
                finder="find_resourceid_by_name_or_id",
                entity="network",
            )
        ]


class _VpcSubnet(_InVpc, subnet.Subnet):  # type: ignore[misc]
    pass


class _RouteTable(_InVpc, route_table.RouteTable):  # type: ignore[misc]
    pass


#: Types of which a subclass is used: they work here, or nearly so.
_CHANGED = {
    "AWS::EC2::RouteTable": _RouteTable,
    "AWS::EC2::Subnet": _VpcSubnet,
    "OS::Neutron::ProviderNet": ProviderNet,
}


class _Accept(constraints.BaseCustomConstraint):  # type: ignore[misc]
    """A constraint that accepts every name."""

    def validate(self, value: object, context: object, template: object = None) -> bool:  # noqa: ARG002
        return True


def is_real(kind: str) -> bool:
    """Return True when resources of the type ``kind`` really work here."""
    return kind in EXACTLY or (kind.startswith(REAL) and kind not in NOT_REAL)


def not_there(stood_in: Iterable[str], *, networked: bool) -> set[str]:
    """Return the types that have no effect on a guest.

    :param stood_in: the result of :func:`register`.
    :param networked: True when servers have ports of Neutron.
    """
    return {*stood_in, *NOT_ENFORCED, *(() if networked else LINKS)}


def all_types(environment: Any) -> list[str]:
    """Return every type that has a class, including old ones that Heat hides.

    :param environment: Heat's global environment.
    """
    from heat.engine.environment import ClassResourceInfo

    registry = environment.registry._registry
    return [kind for kind, info in registry.items() if isinstance(info, ClassResourceInfo)]


def register(environment: object) -> list[str]:
    """Replace every type that does not run here by a stand-in.

    :param environment: Heat's global environment.
    :return: the replaced types.
    """
    # Heat warns of each type that is registered again, which is the purpose here.
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
        if kind in _CHANGED:
            environment.register_class(kind, _CHANGED[kind])
        if is_real(kind):
            continue
        stood_in.append(kind)
        if issubclass(real, NoneResource):
            # Heat itself made it a no-op.
            continue
        if kind in _CHANGED:
            continue
        # Heat reads the schemas from the class, so each type needs one.
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
        # Not every constraint names its client: Octavia's have no resource_client_name.
        service, dot, _kind = name.partition(".")
        if dot and service not in ASKED and name not in CONSTRAINTS:
            environment.register_constraint(name, _Accept)
    return sorted(stood_in)
