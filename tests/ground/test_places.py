"""Each module is tested in the file of its name in its room, or in the file listed here."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

ELSEWHERE = {
    "__main__": "cli/test_command.py",
    "children/reaper": "children/test_keeper.py",
    "cli/arguments": "cli/test_command.py",
    "cli/build": "cli/test_build_verb.py",
    "cli/case_on_worker": "cli/test_on_cluster.py",
    "cli/case_process": "cli/test_side_by_side.py",
    "cli/case_run": "cli/test_whose_fault.py",
    "cli/cluster_client": "cli/test_cluster_losses.py",
    "cli/cluster_inbox": "cli/test_cluster_losses.py",
    "cli/down": "cli/test_up.py",
    "cli/hook": "hookkit/test_run.py",
    "cli/hook_arguments": "hookkit/test_run.py",
    "cli/hook_check": "hookkit/test_check.py",
    "cli/hook_check_image": "hookkit/test_image_check.py",
    "cli/hook_new": "hookkit/test_new.py",
    "cli/hook_push": "hookkit/test_push.py",
    "testbed/host_probes": "cli/test_doctor.py",
    "cli/homecoming": "cli/test_on_cluster.py",
    "cli/image_sender": "cli/test_on_cluster.py",
    "cli/os_cloud": "elsewhere/test_refusals.py",
    "cli/named": "cli/test_cases.py",
    "cli/jobs": "cli/test_on_cluster.py",
    "cli/monitor": "cli/test_pause.py",
    "cli/output": "cli/test_whose_fault.py",
    "cli/parcels": "cli/test_on_cluster.py",
    "cli/shell": "booted/test_up.py",
    "cli/ssh": "cli/test_up.py",
    "cli/test": "cli/test_whose_fault.py",
    "cloud/database/store": "cloud/test_cloud.py",
    "cloud/expected_deployments": "trial/test_expected.py",
    "cloud/glance/api": "cloud/test_glance_api.py",
    "cloud/glance/images": "cloud/test_glance_api.py",
    "cloud/glance/schemas": "cloud/test_glance_api.py",
    "cloud/heat/api": "cloud/test_clients.py",
    "cloud/heat/client_plugins": "cloud/test_templates.py",
    "cloud/heat/engine": "cloud/test_cloud.py",
    "cloud/heat/patches": "cloud/test_cloud.py",
    "cloud/heat/stand_ins": "cloud/test_templates.py",
    "cloud/http/addresses": "cloud/test_gateway.py",
    "cloud/http/quota": "cloud/test_hostile_guest.py",
    "cloud/http/serving": "cloud/test_gateway.py",
    "cloud/keystone/api": "cloud/test_clients.py",
    "cloud/keystone/heat_backend": "cloud/test_transports.py",
    "cloud/keystone/identity": "cloud/test_guard.py",
    "cloud/neutron/api": "cloud/test_neutron_api.py",
    "cloud/neutron/attributes": "cloud/test_neutron_api.py",
    "cloud/neutron/errors": "cloud/test_neutron_api.py",
    "cloud/neutron/floating_ips": "cloud/test_neutron_api.py",
    "cloud/neutron/listing": "cloud/test_neutron_api.py",
    "cloud/neutron/networking": "cloud/test_neutron_api.py",
    "cloud/neutron/networks": "cloud/test_neutron_api.py",
    "cloud/neutron/ports": "cloud/test_neutron_api.py",
    "cloud/neutron/quotas": "cloud/test_neutron_api.py",
    "cloud/neutron/records": "cloud/test_neutron_api.py",
    "cloud/neutron/resources": "cloud/test_neutron_api.py",
    "cloud/neutron/routers": "cloud/test_neutron_api.py",
    "cloud/neutron/security_groups": "cloud/test_neutron_api.py",
    "cloud/neutron/subnet_pools": "cloud/test_neutron_heat.py",
    "cloud/neutron/subnets": "cloud/test_neutron_api.py",
    "cloud/neutron/taken_for_granted": "cloud/test_neutron_heat.py",
    "cloud/nova/api": "cloud/test_nova_api.py",
    "cloud/nova/capacity": "cloud/test_nova_api.py",
    "cloud/nova/groups": "cloud/test_nova_api.py",
    "cloud/nova/keypairs": "cloud/test_nova_api.py",
    "cloud/nova/microversions": "cloud/test_nova_api.py",
    "cloud/nova/interfaces": "cloud/test_server_ports.py",
    "cloud/nova/neutron": "cloud/test_server_ports.py",
    "cloud/nova/schemas": "cloud/test_nova_api.py",
    "cloud/nova/server_actions": "cloud/test_nova_api.py",
    "cloud/nova/server_changes": "cloud/test_nova_api.py",
    "cloud/nova/server_create": "cloud/test_nova_api.py",
    "cloud/nova/server_records": "cloud/test_nova_api.py",
    "cloud/nova/servers": "cloud/test_nova_api.py",
    "cloud/nova/servers_api": "cloud/test_nova_api.py",
    "cloud/services": "cloud/test_cloud.py",
    "cloud/swift_objects": "cloud/test_swift.py",
    "cloud/zaqar/queues": "cloud/test_clients.py",
    "cloud/zaqar/websocket": "cloud/test_transports.py",
    "cluster/image_set": "cluster/test_image_store.py",
    "elsewhere/following": "elsewhere/test_cloud_trial.py",
    "elsewhere/images": "elsewhere/test_refusals.py",
    "elsewhere/leftovers": "elsewhere/test_cloud_trial.py",
    "elsewhere/os_cloud": "elsewhere/test_refusals.py",
    "elsewhere/project": "elsewhere/test_cloud_trial.py",
    "elsewhere/tree": "elsewhere/test_cloud_trial.py",
    "elsewhere/way_program": "elsewhere/test_ssh_jump.py",
    "errors": "verdict/test_verdict.py",
    "events/background": "events/test_log.py",
    "events/event": "events/test_log.py",
    "events/expected": "trial/test_expected.py",
    "guest/base": "guest/test_ways_in.py",
    "guest/shell": "guest/test_ways_in.py",
    "guest/keys": "session/test_directory.py",
    "guest/ssh": "guest/test_ways_in.py",
    "guest/wire": "guest/test_hostile_replies.py",
    "hookkit/contract": "hookkit/test_check.py",
    "hookkit/contract_configs": "hookkit/test_check.py",
    "hookkit/contract_file": "hookkit/test_check.py",
    "hookkit/lines": "hookkit/test_check.py",
    "hookkit/guest_check": "hookkit/test_image_check.py",
    "hookkit/findings": "hookkit/test_run.py",
    "hookkit/guest_runner": "hookkit/test_run.py",
    "hookkit/show": "hookkit/test_run.py",
    "hookkit/trials": "hookkit/test_check.py",
    "image/chain": "image/test_inspect.py",
    "image/checksum": "image/test_inspect.py",
    "image/offset_partitioning": "elements/test_block_device.py",
    "image/overlay": "image/test_qcow2.py",
    "inspection/nbd": "inspection/test_disk.py",
    "inspection/packages": "inspection/test_contents.py",
    "inspection/partitions": "inspection/test_disk.py",
    "inspection/show": "cli/test_inspect.py",
    "inspection/show_comparison": "cli/test_diff.py",
    "inspection/snapshot": "inspection/test_compare.py",
    "inspection/tree": "inspection/test_ext4.py",
    "inspection/units": "inspection/test_findings.py",
    "lint/collection": "lint/test_elements.py",
    "lint/finding": "lint/test_lint.py",
    "lint/packages": "lint/test_elements.py",
    "lint/show": "cli/test_lint.py",
    "machine/files": "machine/test_confined.py",
    "machine/kvm_probe": "machine/test_accelerator.py",
    "network/links": "network/test_segment.py",
    "network/privileges": "network/test_segment.py",
    "network/forwarder": "network/test_router.py",
    "network/helper": "network/test_segment.py",
    "paths": "image/test_plan.py",
    "plugin/cloud_pool": "elsewhere/test_cloud_plugin.py",
    "plugin/options": "plugin/test_plugin.py",
    "plugin/pool": "plugin/test_isolation.py",
    "plugin/server": "booted/test_plugin_booted.py",
    "report/deployment_output": "booted/test_expected.py",
    "report/files": "cli/test_what_stays.py",
    "report/picture": "report/test_html.py",
    "report/timeline": "report/test_html.py",
    "session/access": "booted/test_up.py",
    "session/channel": "session/test_directory.py",
    "session/control": "session/test_directory.py",
    "testbed/qemu_compute": "trial/test_expected.py",
    "timing/host_speed": "timing/test_deadline.py",
    "trial/cloud_trial": "elsewhere/test_cloud_trial.py",
    "trial/guest_probe": "trial/test_watch.py",
    "verdict/deployment_track": "verdict/test_tracker.py",
    "verdict/detectors": "verdict/test_diagnosis.py",
    "verdict/facts": "verdict/test_diagnosis.py",
    "verdict/guest_boot": "verdict/test_causes.py",
    "verdict/guest_files": "verdict/test_causes.py",
    "verdict/guest_network": "verdict/test_causes.py",
    "verdict/guest_units": "verdict/test_causes.py",
    "verdict/health": "verdict/test_causes.py",
    "verdict/hook_output": "verdict/test_tool_errors.py",
    "verdict/rule": "verdict/test_diagnosis.py",
    "verdict/rules": "verdict/test_diagnosis.py",
}
"""Modules without a test file of their name, and the file that has most of their tests."""


def modules() -> list[str]:
    """Return all modules but the rooms' ``__init__``, as paths below hotplate/ without suffix."""
    paths = (path.relative_to(ROOT / "hotplate") for path in (ROOT / "hotplate").rglob("*.py"))
    return sorted(str(path.with_suffix("")) for path in paths if path.name != "__init__.py")


def has_its_own(module: str) -> bool:
    room, _, _ = module.rpartition("/")
    name = f"test_{Path(module).name}.py"
    folder = room.partition("/")[0] or "ground"
    return (ROOT / "tests" / folder / name).exists()


@pytest.mark.parametrize("module", modules())
def test_each_module_has_its_tests(module):
    place = ELSEWHERE.get(module)
    assert has_its_own(module) or (place and (ROOT / "tests" / place).exists())


def test_table_has_no_unneeded_row():
    gone = ELSEWHERE.keys() - modules()
    assert not gone
    assert [module for module in ELSEWHERE if has_its_own(module)] == []
