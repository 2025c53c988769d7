"""The probe tells a working accelerator from a broken one, and its result is cached."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from hotplate.errors import HostError
from hotplate.machine import accelerator, kvm_probe

QEMU = "qemu-system-x86_64"
pytestmark = pytest.mark.tool(QEMU)


def test_probe_succeeds_on_a_working_accelerator() -> None:
    verdict = accelerator.probe(QEMU, accelerator="tcg", cpu="qemu64")
    assert verdict.works, verdict.seen


def patched(offset: int, code: str) -> bytes:
    image = bytearray(kvm_probe.rom())
    data = bytes.fromhex(code)
    image[offset : offset + len(data)] = data
    return bytes(image)


@pytest.mark.parametrize(
    ("rom", "seen"),
    [
        pytest.param(patched(0x98, "ebfe"), "did not end within 2 s", id="hangs"),
        # The loop takes 2^32 rounds instead of 20 million: too slow.
        pytest.param(patched(0xB5, "b900000000"), "did not end within 2 s", id="crawls"),
        pytest.param(patched(0xD5, "b000"), "status 1", id="says something else"),
    ],
)
def test_probe_fails_when_the_work_is_not_done(rom: bytes, seen: str) -> None:
    verdict = accelerator.probe(QEMU, accelerator="tcg", cpu="qemu64", rom=rom)
    assert not verdict.works
    assert seen in verdict.seen


def test_probe_reports_the_error_of_qemu() -> None:
    verdict = accelerator.probe(QEMU, accelerator="tcg", cpu="no-such-cpu")
    assert not verdict.works
    assert "no-such-cpu" in verdict.seen


def test_table_covers_the_code_without_gaps() -> None:
    end = 0
    for offset, code, _ in kvm_probe.CODE:
        assert offset == end
        end = offset + len(code) // 2


@pytest.mark.tool("objdump")
@pytest.mark.parametrize(
    ("mode", "first", "end"), [("i8086", 0, 0x89), ("i386:x86-64", 0x89, 0xDF)]
)
def test_table_matches_the_disassembly(tmp_path: Path, mode: str, first: int, end: int) -> None:
    if shutil.which("objdump") is None:
        pytest.skip("this host has no disassembler: apt-get install binutils")
    (tmp_path / "rom").write_bytes(kvm_probe.rom())
    shown = subprocess.run(
        [
            *("objdump", "-D", "-w", "-b", "binary", "-m", mode),
            *(f"--start-address={first}", f"--stop-address={end}", tmp_path / "rom"),
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    rows = [line.split("\t") for line in shown.splitlines() if line.count("\t") >= 2]
    decoded = {int(row[0].strip(" :"), 16): " ".join(row[2].split()) for row in rows}
    for offset, _, text in kvm_probe.CODE:
        if first <= offset < end:
            # objdump names the 32-bit register in moves to segment registers.
            assert decoded[offset].split("#")[0].strip().replace("%eax,%", "%ax,%") in (
                text,
                text.replace("%eax,%", "%ax,%"),
            )


def test_choice_is_made_and_cached(tmp_path: Path) -> None:
    cache = tmp_path / "new" / "kvm.json"
    chosen = accelerator.choose(cache=cache.parent)
    assert chosen.name in ("kvm", "tcg")
    assert chosen.reason
    if chosen.name == "kvm":
        assert accelerator.choose("kvm", cache=cache.parent).name == "kvm"
    if cache.exists():
        cached = json.loads(cache.read_text())
        # The cache is trusted: inverted results invert the choice.
        turned = {key: [not works, "turned round"] for key, (works, _) in cached.items()}
        cache.write_text(json.dumps(turned))
        assert accelerator.choose(cache=cache.parent).name != chosen.name


@pytest.fixture
def played_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """KVM, where this host offers it, does not work; test_choice_is_made_and_cached really asks."""
    played = accelerator.KvmResult(False, "it is played")
    monkeypatch.setattr(accelerator, "probe", lambda *_, **__: played)


def test_damaged_cache_is_ignored(tmp_path: Path, played_probe: None) -> None:
    cache = tmp_path / "kvm.json"
    cache.write_text('{"half')
    assert accelerator.choose(cache=tmp_path).name in ("kvm", "tcg")
    cache.unlink()
    cache.mkdir()
    assert accelerator.choose(cache=tmp_path).name in ("kvm", "tcg")


def test_another_architecture_is_emulated_with_a_reason() -> None:
    assert accelerator.emulation("x", arch="aarch64").cpu == "cortex-a57"
    reason = accelerator._refusal("riscv64")
    assert reason is not None
    assert "the guest is riscv64" in reason


def test_default_is_two_processors_with_a_safe_emulator() -> None:
    ours = accelerator.choose("tcg")
    assert ours.cpus == accelerator.cpus_emulated(accelerator.qemu_version(QEMU))
    assert accelerator.cpus_emulated("8.0.5") == 1
    assert accelerator.cpus_emulated("8.1.0") == accelerator.cpus_emulated("11.0.50") == 2
    assert accelerator.cpus_emulated("7.2.22", arch="aarch64") == 2


def test_cache_of_translated_code_is_limited() -> None:
    # A boot fills QEMU's default of 1,024 MiB: twice the memory that it needs otherwise.
    options = accelerator.emulation("a test").options
    assert options == ("-accel", "tcg,thread=multi,tb-size=256")


def test_accelerator_asked_for_is_used() -> None:
    assert accelerator.choose("tcg").reason == "it was asked for"


def test_kvm_asked_for_is_refused_with_the_reason(tmp_path: Path, played_probe: None) -> None:
    with pytest.raises(HostError, match="KVM was asked for, but"):
        accelerator.choose("kvm", cache=tmp_path)
