"""``hotplate inspect``: report the content of an image and its faults, without booting it."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from hotplate.cli.arguments import add_settings, load_settings
from hotplate.errors import Outcome
from hotplate.image.inspect import find
from hotplate.inspection.inspection import inspected
from hotplate.inspection.sbom import as_cyclonedx, as_spdx
from hotplate.inspection.show import as_document, as_text
from hotplate.inspection.signature import public_key, verify

ABOUT = """\
Say what is in an image: its system, kernel, boot loader and partitions, the
agent and how it is installed, the hooks with their tools and versions,
cloud-init and its data sources, what brings up the network; and what will not
work, was left in by an earlier server or the build, or differs from a standard
image of an OpenStack cloud, with a mend and a source for each.

The image is neither booted nor changed. ext4, FAT and linear volumes of LVM are
read without root; xfs and btrfs as root, by the host's kernel, which mounts
them read-only: do that only with an image whose builder you trust.
NAME.manifest.json is used where it is there and is the image's own.
"""

EPILOG = """\
exit status:
  0      looked at, whatever was found
  1      the image is damaged, no image or without a system; with --strict, there
         is a finding; with --verify, the image or a file beside it is not as signed
  2      wrong usage, or an image that does not exist or has another format
  3      the host lacks something, or the root file system cannot be read here
  128+N  interrupted by the signal N

examples:
  hotplate inspect web.qcow2
  hotplate inspect --strict --json web.qcow2 > web.json
  hotplate inspect --strict --skip no-agent,no-hook web.qcow2
  hotplate inspect --verify builder.pub web.qcow2
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Fill in the command line of ``hotplate inspect``."""
    parser.description, parser.epilog = ABOUT, EPILOG
    parser.add_argument("image", metavar="IMAGE", help="a qcow2, raw, VMDK, VHDX or VDI image")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--json", action="store_true", help="print it as JSON, with all packages")
    kind.add_argument(
        "--sbom",
        dest="bill",
        action="store_const",
        const=as_cyclonedx,
        help="print a bill of materials, CycloneDX 1.6",
    )
    kind.add_argument(
        "--spdx",
        dest="bill",
        action="store_const",
        const=as_spdx,
        help="print a bill of materials, SPDX 2.3",
    )
    parser.add_argument("--strict", action="store_true", help="exit status 1 for a finding")
    parser.add_argument(
        "--verify",
        type=Path,
        metavar="KEY",
        help="refuse an image that was not signed by hotplate build --sign, or was changed since: "
        "the signer's public key, PEM",
    )
    add_settings(parser, "skip")
    parser.add_argument(
        "--allow-backing",
        action="store_true",
        help="follow an image's backing files out of its directory",
    )


def run(args: argparse.Namespace) -> int:
    """Inspect an image; return 1 for a finding when findings count.

    :raises ImageError: when the root file system cannot be read; the rest is printed.
    """
    settings = load_settings(args)
    cache = settings.cache
    image, verified = args.image, None
    text = ""
    if args.verify:
        # First: nothing of an image of somebody else is read.
        # By the path of the file itself: a link could lead to another one when it is opened.
        image = find(Path(args.image))
        verified = verify(image, public_key(args.verify), named=str(args.verify))
        if not (args.json or args.bill):
            print(f'signed with "{args.verify}": {", ".join(verified.names)}\n')
    with inspected(
        image,
        allow_backing=args.allow_backing,
        checksums=cache / "checksums",
        cache=cache,
    ) as seen:
        counted = tuple(each for each in seen.findings if each.kind not in settings.skip)
        inspection = replace(seen, findings=counted)
        if args.bill:
            if inspection.contents is not None:
                text = args.bill(inspection, inspection.contents) + "\n"
        elif args.json:
            text = json.dumps(as_document(inspection), indent=2) + "\n"
        else:
            text = as_text(inspection)
    if verified is not None:
        # The image is opened by its name several times, also by qemu-nbd and the kernel.
        verified.check_unchanged()
    print(text, end="")
    if inspection.error is not None:
        raise inspection.error
    failed = args.strict and inspection.findings
    return (Outcome.FAILED if failed else Outcome.PASSED).exit_status
