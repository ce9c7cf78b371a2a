"""Confines the current process for good: what it gives up here it can never have again.

Always: limits on memory, processor time, files and processes. Where started as root: the rights of root. On Linux,
where the kernel has them: the file system (Landlock), and every system call that reading does not need (seccomp).
Import what the process needs before: afterwards it may be unable to open any file.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import struct
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

NOBODY = 65534
OPEN_FILES = 32
"""Enough for a module that is imported late."""

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_LANDLOCK_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""How many rights over files each version of Landlock knows; later ones know as many as the fifth."""
_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3

_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | 1  # refused with EPERM
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

_ARCHES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_CALLS: dict[str, tuple[int | None, int | None]] = {  # numbers on x86_64 and aarch64
    "read": (0, 63),
    "write": (1, 64),
    "close": (3, 57),
    "stat": (4, None),
    "fstat": (5, 80),
    "lstat": (6, None),
    "poll": (7, None),
    "lseek": (8, 62),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "brk": (12, 214),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "pread64": (17, 67),
    "readv": (19, 65),
    "writev": (20, 66),
    "access": (21, None),
    "sched_yield": (24, 124),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "nanosleep": (35, 101),
    "getitimer": (36, 102),
    "setitimer": (38, 103),
    "getpid": (39, 172),
    "exit": (60, 93),
    "getcwd": (79, 17),
    "readlink": (89, None),
    "gettimeofday": (96, 169),
    "getrlimit": (97, 163),
    "getrusage": (98, 165),
    "times": (100, 153),
    "getuid": (102, 174),
    "geteuid": (107, 175),
    "sigaltstack": (131, 132),
    "setrlimit": (160, 164),
    "gettid": (186, 178),
    "futex": (202, 98),
    "sched_getaffinity": (204, 123),
    "getdents64": (217, 61),
    "restart_syscall": (219, 128),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115),
    "exit_group": (231, 94),
    "newfstatat": (262, 79),
    "readlinkat": (267, 78),
    "faccessat": (269, 48),
    "ppoll": (271, 73),
    "getrandom": (318, 278),
    "statx": (332, 291),
    "faccessat2": (439, 439),
}
_OPEN: dict[str, tuple[int | None, int | None, int]] = {"open": (2, None, 1), "openat": (257, 56, 2)}
"""The last number is the place of the flags among the arguments."""
_FIRST_ARGUMENT: dict[str, tuple[int, int, Callable[[], int]]] = {
    "tgkill": (234, 131, os.getpid),
    "prlimit64": (302, 261, lambda: 0),
}
"""Allowed only about this process itself."""
_SECOND_ARGUMENT: dict[str, tuple[int, int, tuple[int, ...]]] = {
    "fcntl": (72, 25, (1, 2, 3, 4, 1030)),  # flags and copies of descriptors
    "ioctl": (16, 29, (0x5401, 0x5451)),  # "is it a terminal?" and "close it on exec"
}

Report = dict[str, str]
"""Each confinement by name: empty where it is in force, else why it is not."""


def confine() -> Report:
    """All of it except the limits of each request; see `limit_process` and `limit_request`."""
    report: Report = {}
    _try(report, "no new privileges", _no_new_privileges)
    _try(report, "landlock", _landlock)
    _try(report, "privileges", _drop_privileges)
    _try(report, "not dumpable", lambda: _prctl(_PR_SET_DUMPABLE, 0))
    _try(report, "ends with parent", lambda: _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL))
    _try(report, "limits", limit_process)
    _try(report, "seccomp", lambda: _seccomp(may_open=not report["landlock"]))
    return report


def limit_process() -> None:
    for what, most in (
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
    ):
        resource.setrlimit(what, (most, most))


def limit_memory(most: int) -> None:
    """Limit the address space of this process; the limit cannot be raised again."""
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def limit_request(cpu_seconds: float, address_space: int | None) -> None:
    """Limit the processor time from now on, after which the system ends the process, and the address space in all."""
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime + cpu_seconds) + 2, hard))
    if address_space is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        soft = address_space if hard == resource.RLIM_INFINITY else min(address_space, hard)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def rest() -> None:
    """Stop counting processor time until the next request."""
    signal.setitimer(signal.ITIMER_PROF, 0)


def _try(report: Report, name: str, step: Callable[[], object]) -> None:
    try:
        step()
        report[name] = ""
    except (OSError, ValueError, _Missing) as error:
        report[name] = str(error) or type(error).__name__


class _Missing(Exception):
    pass


def _libc() -> Any:
    if sys.platform != "linux":
        raise _Missing("only on Linux")
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _prctl(what: int, value: int, more: Any = 0) -> None:
    _checked(_libc().prctl(what, ctypes.c_ulong(value), more, 0, 0))


def _no_new_privileges() -> None:
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def _drop_privileges() -> None:
    """Root becomes `nobody`; anyone else has nothing to give up."""
    if os.geteuid() != 0:
        return
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def _landlock() -> None:
    """No file but those that Python itself is made of, and these only to be read; no TCP, no signals to others."""
    libc = _libc()
    version = _checked(libc.syscall(_LANDLOCK_CREATE, None, 0, 1))
    rights = (1 << _LANDLOCK_RIGHTS.get(version, 16)) - 1
    fields = [rights, *([3] if version >= 4 else []), *([3] if version >= 6 else [])]
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    rules = _checked(libc.syscall(_LANDLOCK_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0))
    try:
        for folder in _python_folders():
            _allow_reading(libc, rules, folder)
        _checked(libc.syscall(_LANDLOCK_RESTRICT, rules, 0))
    finally:
        os.close(rules)


def _allow_reading(libc: Any, rules: int, folder: str) -> None:
    with suppress(FileNotFoundError, NotADirectoryError):
        opened = os.open(folder, os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY)
        try:
            rule = struct.pack("=Qi", _READ_FILE | _READ_FOLDER, opened)
            _checked(libc.syscall(_LANDLOCK_ADD, rules, 1, rule, 0))
        finally:
            os.close(opened)


def _python_folders() -> Iterator[str]:
    """The libraries and our own sources; never a folder that people keep files in."""
    paths = sysconfig.get_paths()
    yield from {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    yield os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    yield from ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")


def _seccomp(*, may_open: bool) -> None:
    if platform.machine() not in _ARCHES:
        raise _Missing(f"not known for {platform.machine()}")
    program = b"".join(_filter(*_ARCHES[platform.machine()], may_open=may_open))
    buffer = ctypes.create_string_buffer(program, len(program))
    handed_over = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer)))
    _prctl(_PR_SET_SECCOMP, 2, ctypes.c_void_p(ctypes.addressof(handed_over)))


def _filter(column: int, arch: int, *, may_open: bool) -> Iterator[bytes]:
    """A classic BPF program: what is not allowed here is refused."""
    yield _load(4)
    yield _jump(_EQUAL, arch, 1, 0)
    yield _return(_KILL)
    yield _load(0)
    yield _jump(_AT_LEAST, 0x40000000, 0, 1)  # another table of calls on x86_64
    yield _return(_REFUSE)
    for numbers in _CALLS.values():
        if (number := numbers[column]) is not None:
            yield from (_jump(_EQUAL, number, 0, 1), _return(_ALLOW))
    for opening in _OPEN.values():
        if may_open and (number := opening[column]) is not None:
            yield from _if(number, opening[2], [_jump(_ANY_BIT, _WRITING, 0, 1), _return(_REFUSE), _return(_ALLOW)])
    for *about_self, own in _FIRST_ARGUMENT.values():
        yield from _if(about_self[column], 0, _one_of((own(),)))
    for *calls, values in _SECOND_ARGUMENT.values():
        yield from _if(calls[column], 1, _one_of(values))
    yield _return(_REFUSE)


def _if(number: int, argument: int, then: list[bytes]) -> list[bytes]:
    """For this call, judge an argument; its lower half is enough for flags, commands and process ids."""
    return [_jump(_EQUAL, number, 0, len(then) + 1), _load(16 + 8 * argument), *then]


def _one_of(values: tuple[int, ...]) -> list[bytes]:
    checks = [part for value in values for part in (_jump(_EQUAL, value, 0, 1), _return(_ALLOW))]
    return [*checks, _return(_REFUSE)]


def _load(offset: int) -> bytes:
    return struct.pack("=HBBI", _LOAD, 0, 0, offset)


def _jump(kind: int, value: int, if_true: int, if_false: int) -> bytes:
    return struct.pack("=HBBI", kind, if_true, if_false, value)


def _return(verdict: int) -> bytes:
    return struct.pack("=HBBI", _RETURN, 0, 0, verdict)
