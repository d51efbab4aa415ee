"""The filter for system calls: it refuses those that the agent's program may not make.

It lists the refused calls; a list of permitted calls would break programs that nobody thought of. Calls that the kernel
gained after this list was written fail with ENOSYS, as if they did not exist, until someone has reviewed them. The
filter is a search tree, not a chain of comparisons, because the kernel runs it for every call number when it is
installed.
"""

import ctypes
import errno
import functools
import struct

from .syscalls import NEW_NAMESPACES, PR_SET_SECCOMP, machine, number, prctl
from .syscalls import REFUSED as REFUSED

_AUDIT_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_FIRST_X32 = 0x40000000
_FIRST_UNKNOWN = 457  # after futex_requeue
_MODE_FILTER = 2
_AF_UNIX, _TIOCSTI, _TIOCLINUX, _F_SETLEASE, _F_NOTIFY = 1, 0x5412, 0x541C, 1024, 1026

_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_REFUSE, _ABSENT = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _JUMP, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x05, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24  # offsets in struct seccomp_data

Code = list[tuple[int, int, int, int]]
"""Instructions: operation, jump if true, jump if false, operand."""
_REFUSE_ELSE_ALLOW: Code = [(_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]


def install(*, memfd: bool = True, unix_sockets: bool = True) -> None:
    """Filter this thread and its children for good; no_new_privs must be set.

    `memfd=False` refuses memfd, for machines that do not count memory which no process has mapped. `unix_sockets=False`
    refuses all sockets except socketpair, if nothing else separates the abstract socket names of sessions.
    """
    prctl(PR_SET_SECCOMP, _MODE_FILTER, prepare(memfd=memfd, unix_sockets=unix_sockets)[0])


@functools.cache
def prepare(*, memfd: bool = True, unix_sockets: bool = True) -> tuple[bytes, object]:
    """Return `struct sock_fprog` and the program it points to. A zygote calls this once, so that its forks need not."""
    program = build(memfd=memfd, unix_sockets=unix_sockets)
    buffer = ctypes.create_string_buffer(program, len(program))
    return struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer)), buffer


def build(*, memfd: bool = True, unix_sockets: bool = True) -> bytes:
    """Return the filter for this processor in the kernel's format."""
    code: Code = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, _AUDIT_ARCHITECTURE[machine()]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _FIRST_X32),
        (_RETURN, 0, 0, _KILL),
    ]
    code += _search(_steps(_verdicts(memfd, unix_sockets)))
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


def _verdicts(memfd: bool, unix_sockets: bool) -> dict[int, Code]:
    """Return the filter code for each system call that is not simply allowed."""
    codes: dict[str, Code] = {name: [(_RETURN, 0, 0, _REFUSE)] for name in REFUSED}
    codes["clone3"] = [(_RETURN, 0, 0, _ABSENT)]  # its flags are out of a filter's sight; libc then takes clone
    codes["clone"] = [(_LOAD, 0, 0, _FIRST_ARGUMENT), (_ANY_BIT, 0, 1, NEW_NAMESPACES), *_REFUSE_ELSE_ALLOW]
    family = [(_LOAD, 0, 0, _FIRST_ARGUMENT), (_EQUAL, 1, 0, _AF_UNIX), *_REFUSE_ELSE_ALLOW]
    codes["socketpair"] = family
    codes["socket"] = family if unix_sockets else [(_RETURN, 0, 0, _REFUSE)]
    for name, first, other in (("ioctl", _TIOCSTI, _TIOCLINUX), ("fcntl", _F_SETLEASE, _F_NOTIFY)):
        code = [(_LOAD, 0, 0, _SECOND_ARGUMENT), (_EQUAL, 1, 0, first), (_EQUAL, 0, 1, other)]
        codes[name] = [*code, *_REFUSE_ELSE_ALLOW]
    # Of oneself only: another process of the same user, an init say, has limits too. Of arguments the low half is seen.
    codes["prlimit64"] = [(_LOAD, 0, 0, _FIRST_ARGUMENT), (_EQUAL, 1, 0, 0), *_REFUSE_ELSE_ALLOW]
    if not memfd:
        codes["memfd_create"] = [(_RETURN, 0, 0, _REFUSE)]
    verdicts = {number(name): verdict for name, verdict in codes.items()}
    return {which: verdict for which, verdict in verdicts.items() if which is not None}


def _steps(verdicts: dict[int, Code]) -> list[tuple[int, Code]]:
    """Return (first number, verdict) pairs: each verdict holds up to the number at which the next one begins."""
    allow: Code = [(_RETURN, 0, 0, _ALLOW)]
    steps: list[tuple[int, Code]] = []
    for which in range(_FIRST_UNKNOWN):
        verdict = verdicts.get(which, allow)
        if not steps or steps[-1][1] != verdict:
            steps.append((which, verdict))
    return [*steps, (_FIRST_UNKNOWN, [(_RETURN, 0, 0, _ABSENT)])]


def _search(steps: list[tuple[int, Code]]) -> Code:
    """Return the filter code that finds the verdict for a call number by binary search in these steps."""
    if len(steps) == 1:
        return steps[0][1]
    middle = len(steps) // 2
    below, above = _search(steps[:middle]), _search(steps[middle:])
    if len(below) < 256:
        return [(_AT_LEAST, len(below), 0, steps[middle][0]), *below, *above]
    return [(_AT_LEAST, 0, 1, steps[middle][0]), (_JUMP, 0, 0, len(below)), *below, *above]
