"""Firmware image that does the work of a guest in miniature and then reports success.

It is run on an accelerator to check that it really executes code. Some hosts offer ``/dev/kvm``,
answer every question about it, and then hang or crawl: only work done in time is proof. The ROM
enters 64-bit mode with paging, touches 14 MiB, exits to the hypervisor 1000 times, and runs a loop
of 20 million rounds; then QEMU's ``isa-debug-exit`` device ends QEMU with the status
:data:`SUCCESS`.

The program is a table: offset, machine code, and the same in AT&T syntax.
"""

from __future__ import annotations

ROM_BYTES = 65536
EXIT_PORT = 0xF4
#: ``isa-debug-exit`` makes 2n + 1 of a written n; the ROM writes 49.
SUCCESS = 99

CODE: tuple[tuple[int, str, str], ...] = (
    # 16-bit real mode: a stack, and page tables at 0x10000 that map the first GiB to itself
    (0x00, "fa", "cli"),
    (0x01, "31c0", "xor %ax,%ax"),
    (0x03, "8ed8", "mov %ax,%ds"),
    (0x05, "8ec0", "mov %ax,%es"),
    (0x07, "8ed0", "mov %ax,%ss"),
    (0x09, "bc0070", "mov $0x7000,%sp"),
    (0x0C, "b80010", "mov $0x1000,%ax"),
    (0x0F, "8ec0", "mov %ax,%es"),
    (0x11, "31ff", "xor %di,%di"),
    (0x13, "b90060", "mov $0x6000,%cx"),
    (0x16, "30c0", "xor %al,%al"),
    (0x18, "fc", "cld"),
    (0x19, "f3aa", "rep stos %al,%es:(%di)"),
    (0x1B, "2666c706000003100100", "movl $0x11003,%es:0x0"),
    (0x25, "2666c706001003200100", "movl $0x12003,%es:0x1000"),
    (0x2F, "bf0020", "mov $0x2000,%di"),
    (0x32, "66b883000000", "mov $0x83,%eax"),
    (0x38, "26668905", "mov %eax,%es:(%di)"),
    (0x3C, "660500002000", "add $0x200000,%eax"),
    (0x42, "83c708", "add $0x8,%di"),
    (0x45, "81ff0030", "cmp $0x3000,%di"),
    (0x49, "72ed", "jb 0x38"),
    # long mode: PAE, CR3, EFER.LME, then paging and protection at once
    (0x4B, "2e660f0116f800", "lgdtl %cs:0xf8"),
    (0x52, "0f20e0", "mov %cr4,%eax"),
    (0x55, "6683c820", "or $0x20,%eax"),
    (0x59, "0f22e0", "mov %eax,%cr4"),
    (0x5C, "66b800000100", "mov $0x10000,%eax"),
    (0x62, "0f22d8", "mov %eax,%cr3"),
    (0x65, "66b9800000c0", "mov $0xc0000080,%ecx"),
    (0x6B, "0f32", "rdmsr"),
    (0x6D, "660d00010000", "or $0x100,%eax"),
    (0x73, "0f30", "wrmsr"),
    (0x75, "0f20c0", "mov %cr0,%eax"),
    (0x78, "660d01000080", "or $0x80000001,%eax"),
    (0x7E, "0f22c0", "mov %eax,%cr0"),
    (0x81, "66ea89000f000800", "ljmpl $0x8,$0xf0089"),
    # 64-bit mode: write one word to each page from 2 MiB to 16 MiB
    (0x89, "66b81000", "mov $0x10,%ax"),
    (0x8D, "8ed8", "mov %ax,%ds"),
    (0x8F, "8ec0", "mov %ax,%es"),
    (0x91, "8ed0", "mov %ax,%ss"),
    (0x93, "bf00002000", "mov $0x200000,%edi"),
    (0x98, "893f", "mov %edi,(%rdi)"),
    (0x9A, "81c700100000", "add $0x1000,%edi"),
    (0xA0, "81ff00000001", "cmp $0x1000000,%edi"),
    (0xA6, "72f0", "jb 0x98"),
    # exit to the hypervisor 1000 times
    (0xA8, "bee8030000", "mov $0x3e8,%esi"),
    (0xAD, "31c0", "xor %eax,%eax"),
    (0xAF, "0fa2", "cpuid"),
    (0xB1, "ffce", "dec %esi"),
    (0xB3, "75f8", "jne 0xad"),
    # 20 million rounds of a loop, which would take minutes if each instruction were emulated
    (0xB5, "b9002d3101", "mov $0x1312d00,%ecx"),
    (0xBA, "ffc9", "dec %ecx"),
    (0xBC, "75fc", "jne 0xba"),
    # the words written must still be there
    (0xBE, "bf00002000", "mov $0x200000,%edi"),
    (0xC3, "393f", "cmp %edi,(%rdi)"),
    (0xC5, "7515", "jne 0xdc"),
    (0xC7, "81c700100000", "add $0x1000,%edi"),
    (0xCD, "81ff00000001", "cmp $0x1000000,%edi"),
    (0xD3, "72ee", "jb 0xc3"),
    # write 49 to isa-debug-exit, which becomes exit status 99; else halt for ever
    (0xD5, "b031", "mov $0x31,%al"),
    (0xD7, "66baf400", "mov $0xf4,%dx"),
    (0xDB, "ee", "out %al,(%dx)"),
    (0xDC, "f4", "hlt"),
    (0xDD, "ebfd", "jmp 0xdc"),
)

DATA: tuple[tuple[int, str, str], ...] = (
    (0xE0, "0000000000000000", "descriptor table: the null segment"),
    (0xE8, "00000000009a2000", "64-bit code"),
    (0xF0, "0000000000920000", "data"),
    (0xF8, "1700e0000f00", "limit and address of that table"),
    (0xFFF0, "ea000000f0", "reset vector: ljmp $0xf000,$0"),
)


def rom() -> bytes:
    """Return the image, which is mapped so that it ends at 4 GiB and at 1 MiB."""
    # Filled with hlt, at which a wrong jump ends.
    image = bytearray(b"\xf4" * ROM_BYTES)
    for offset, code, _ in CODE + DATA:
        data = bytes.fromhex(code)
        image[offset : offset + len(data)] = data
    return bytes(image)
