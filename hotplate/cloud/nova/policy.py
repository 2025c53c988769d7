"""Requests that Nova leaves to administrators: the defaults of its policies (``nova/policies``)."""

from __future__ import annotations

from functools import partial

from hotplate.cloud.http.rest import TAG_FILTERS, Answer, HttpError, Request
from hotplate.cloud.nova.microversions import Caller
from hotplate.cloud.nova.server_records import ServerRecord

#: Method and path -> the rule that refuses it.
ADMIN_ROUTES = {
    ("GET", "/flavors/{id}/os-flavor-access"): "os-flavor-access",
    ("POST", "/flavors"): "os-flavor-manage:create",
    ("PUT", "/flavors/{id}"): "os-flavor-manage:update",
    ("DELETE", "/flavors/{id}"): "os-flavor-manage:delete",
    ("POST", "/flavors/{id}/os-extra_specs"): "os-flavor-extra-specs:create",
    ("PUT", "/flavors/{id}/os-extra_specs/{key}"): "os-flavor-extra-specs:update",
    ("DELETE", "/flavors/{id}/os-extra_specs/{key}"): "os-flavor-extra-specs:delete",
    ("GET", "/os-aggregates"): "os-aggregates:index",
    ("POST", "/os-aggregates"): "os-aggregates:create",
    ("GET", "/os-availability-zone/detail"): "os-availability-zone:detail",
    ("GET", "/os-hosts"): "os-hosts:list",
    ("GET", "/os-hypervisors"): "os-hypervisors:list",
    ("GET", "/os-hypervisors/detail"): "os-hypervisors:list-detail",
    ("GET", "/os-hypervisors/statistics"): "os-hypervisors:statistics",
    ("GET", "/os-hypervisors/{id}"): "os-hypervisors:show",
    ("GET", "/os-instance_usage_audit_log"): "os-instance-usage-audit-log:list",
    ("GET", "/os-migrations"): "os-migrations:index",
    ("GET", "/os-quota-class-sets/{id}"): "os-quota-class-sets:show",
    ("PUT", "/os-quota-class-sets/{id}"): "os-quota-class-sets:update",
    ("PUT", "/os-quota-sets/{project}"): "os-quota-sets:update",
    ("DELETE", "/os-quota-sets/{project}"): "os-quota-sets:delete",
    ("GET", "/os-services"): "os-services:list",
    ("GET", "/os-simple-tenant-usage"): "os-simple-tenant-usage:list",
    ("GET", "/servers/{id}/diagnostics"): "os-server-diagnostics",
    ("GET", "/servers/{id}/migrations"): "servers:migrations:index",
}

#: Action on a server -> the rule that refuses it.
ADMIN_ACTIONS = {
    "evacuate": "os-evacuate",
    "injectNetworkInfo": "os-admin-actions:inject_network_info",
    "migrate": "os-migrate-server:migrate",
    "os-migrateLive": "os-migrate-server:migrate_live",
    "os-resetState": "os-admin-actions:reset_state",
    "shelveOffload": "os-shelve:shelve_offload",
}

#: Parameter of a list of servers -> the minor microversion since which a user may give it
#: (``_get_server_search_options``); those of others are ignored.
USERS_FILTERS = {
    **dict.fromkeys(("name", "status", "image", "flavor", "ip", "changes-since"), 1),
    "ip6": 5,
    **dict.fromkeys(TAG_FILTERS, 26),
    "changes-before": 66,
    "locked": 73,
    **dict.fromkeys(("availability_zone", "config_drive", "key_name", "user_id"), 83),
    **dict.fromkeys(("power_state", "task_state", "vm_state"), 83),
    "hostname": 90,
}


def forbidden(rule: str) -> HttpError:
    """Return Nova's refusal.

    :param rule: without ``os_compute_api:``.
    """
    return HttpError(403, f"Policy doesn't allow os_compute_api:{rule} to be performed.")


def _refuse(rule: str, _request: Request, _caller: Caller) -> Answer:
    raise forbidden(rule)


def check_lock(server: ServerRecord) -> None:
    """Refuse to change a locked server, as Nova's ``check_instance_lock`` does.

    :raises HttpError: 409.
    """
    if server.notes.locked:
        raise HttpError(409, f"Instance {server.spec.id} is locked")


#: The routes that are refused to users.
ROUTES = tuple(
    (method, path, partial(_refuse, rule)) for (method, path), rule in ADMIN_ROUTES.items()
)
