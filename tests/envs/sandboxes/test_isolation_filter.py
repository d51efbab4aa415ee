"""The system call filter, run by a small interpreter of the kernel's filter language: every number, both processors."""

import errno
import struct

import pytest

from palaestra.envs.sandboxes.runner import seccomp, syscalls

ALLOW, KILL, REFUSED, ABSENT = 0x7FFF0000, 0x80000000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32 = 0x40000000


def verdict(program: bytes, architecture: int, number: int, first: int = 0, second: int = 0) -> int:
    data = struct.pack("=IIQ6Q", number, architecture, 0, first, second, 0, 0, 0, 0)
    code = list(struct.iter_unpack("HBBI", program))
    accumulator, position = 0, 0
    while True:
        operation, true, false, operand = code[position]
        position += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, operand)
        elif operation == 0x05:
            position += operand
        elif operation == 0x06:
            return operand
        else:
            holds = {0x15: accumulator == operand, 0x35: accumulator >= operand, 0x45: bool(accumulator & operand)}
            position += true if holds[operation] else false


@pytest.fixture(params=ARCHITECTURES)
def processor(request, monkeypatch):
    monkeypatch.setattr(syscalls.platform, "machine", lambda: request.param)
    syscalls.number.cache_clear()
    yield request.param
    syscalls.number.cache_clear()


def test_every_number_below_the_unknown_ones_is_refused_exactly_where_the_list_says(processor):
    program = seccomp.build()
    refused = {syscalls.number(name) for name in seccomp.REFUSED} - {None}
    conditional = {
        syscalls.number(name) for name in ("clone", "clone3", "socket", "socketpair", "ioctl", "fcntl", "prlimit64")
    }
    for number in set(range(457)) - conditional:
        expected = REFUSED if number in refused else ALLOW
        assert verdict(program, ARCHITECTURES[processor], number) == expected, number


def test_newer_numbers_do_not_exist_and_those_of_x32_and_of_another_processor_kill(processor):
    program, own = seccomp.build(), ARCHITECTURES[processor]
    assert {verdict(program, own, number) for number in range(457, 700)} == {ABSENT}
    assert verdict(program, own, X32 | 1) == KILL
    others = {0x40000003, 0x40000028, *ARCHITECTURES.values()} - {own}  # i386, arm, and each other
    assert {verdict(program, other, 1) for other in others} == {KILL}


NAMESPACES = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
CONDITIONS = [
    ("clone", 0x01200011, 0, ALLOW),  # as libc's fork
    ("clone", 0x003D0F00, 0, ALLOW),  # as libc's threads
    *(("clone", flag | 17, 0, REFUSED) for flag in NAMESPACES),
    ("clone3", 0, 0, ABSENT),
    *(
        (name, family, 0, ALLOW if family == 1 else REFUSED)
        for name in ("socket", "socketpair")
        for family in range(50)
    ),
    ("ioctl", 0, 0x5412, REFUSED),  # a terminal cannot be typed into
    ("ioctl", 0, 0x541C, REFUSED),
    ("ioctl", 0, 0x5401, ALLOW),
    ("fcntl", 0, 1024, REFUSED),
    ("fcntl", 0, 1026, REFUSED),
    ("fcntl", 0, 1, ALLOW),
    ("prlimit64", 0, 0, ALLOW),  # of oneself
    ("prlimit64", 1, 0, REFUSED),
    ("memfd_create", 0, 0, ALLOW),
]


def test_what_depends_on_an_argument_is_refused_where_it_is_dangerous(processor):
    program, tight = seccomp.build(), seccomp.build(memfd=False, unix_sockets=False)
    for name, first, second, expected in CONDITIONS:
        found = [
            verdict(one, ARCHITECTURES[processor], syscalls.number(name), first, second) for one in (program, tight)
        ]
        assert found == [expected, REFUSED if name in ("socket", "memfd_create") else expected], (name, first, second)


def test_an_unknown_processor_is_an_error_with_options(monkeypatch):
    monkeypatch.setattr(syscalls.platform, "machine", lambda: "riscv64")
    with pytest.raises(syscalls.Unavailable, match=r"riscv64.*docker"):
        seccomp.build()
