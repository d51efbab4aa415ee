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


def test_numbers_that_are_newer_than_the_list_do_not_exist_and_those_of_x32_kill(processor):
    program, architecture = seccomp.build(), ARCHITECTURES[processor]
    assert {verdict(program, architecture, number) for number in range(457, 700)} == {ABSENT}
    assert verdict(program, architecture, X32 | 1) == KILL


def test_another_processor_s_calls_kill(processor):
    program = seccomp.build()
    for architecture in (0x40000003, 0x40000028, *ARCHITECTURES.values()):  # i386, arm, and each other
        if architecture != ARCHITECTURES[processor]:
            assert verdict(program, architecture, 1) == KILL


def test_clone_makes_processes_and_threads_but_no_namespace(processor):
    program, architecture, clone = seccomp.build(), ARCHITECTURES[processor], syscalls.number("clone")
    assert verdict(program, architecture, clone, 0x01200011) == ALLOW  # as libc's fork
    assert verdict(program, architecture, clone, 0x003D0F00) == ALLOW  # as libc's threads
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert verdict(program, architecture, clone, flag | 17) == REFUSED
    assert verdict(program, architecture, syscalls.number("clone3")) == ABSENT


def test_only_unix_sockets_and_without_them_only_pairs(processor):
    architecture = ARCHITECTURES[processor]
    socket, pair = syscalls.number("socket"), syscalls.number("socketpair")
    for family in range(50):
        expected = ALLOW if family == 1 else REFUSED
        assert verdict(seccomp.build(), architecture, socket, family) == expected
        assert verdict(seccomp.build(unix_sockets=False), architecture, socket, family) == REFUSED
        assert verdict(seccomp.build(unix_sockets=False), architecture, pair, family) == expected


def test_a_terminal_cannot_be_typed_into_and_memfd_goes_where_nothing_counts_it(processor):
    architecture, ioctl = ARCHITECTURES[processor], syscalls.number("ioctl")
    assert verdict(seccomp.build(), architecture, ioctl, 0, 0x5412) == REFUSED
    assert verdict(seccomp.build(), architecture, ioctl, 0, 0x541C) == REFUSED
    assert verdict(seccomp.build(), architecture, ioctl, 0, 0x5401) == ALLOW
    memfd = syscalls.number("memfd_create")
    assert verdict(seccomp.build(), architecture, memfd) == ALLOW
    assert verdict(seccomp.build(memfd=False), architecture, memfd) == REFUSED


def test_an_unknown_processor_is_an_error_with_options(monkeypatch):
    monkeypatch.setattr(syscalls.platform, "machine", lambda: "riscv64")
    with pytest.raises(syscalls.Unavailable, match=r"riscv64.*docker"):
        seccomp.build()


def test_a_process_may_limit_itself_and_nobody_else(processor):
    program, number = seccomp.build(), syscalls.number("prlimit64")
    assert verdict(program, ARCHITECTURES[processor], number, 0) == ALLOW
    assert verdict(program, ARCHITECTURES[processor], number, 1) == REFUSED
