"""Run as a file, by sandbox.py: one untrusted Python program in this process, shut in first.

    python -s -P -B cell.py RESULT_FD < {"program", "token", "seconds", "memory_bytes"}

Limits are set, then a seccomp filter (Linux on x86_64 and aarch64; seccomp(2)) refuses sockets, new
processes, signals, files opened for writing and every change to files. Where there is no seccomp,
an audit hook refuses the same within Python. Which of them is in effect is written to the result
pipe at once; the token follows only after the last line of the program.

This keeps a wrong answer from doing harm. It is no prison for code that was written to break out.
"""

import ctypes
import json
import math
import os
import platform
import resource
import struct
import sys

FILE_BYTES = 1 << 20
OPEN_FILES = 64

# What is refused with EPERM, by number. The generic table is aarch64's; x86_64 has older calls too.
REFUSED = {
    "x86_64": {
        "socket socketpair connect bind listen": (41, 53, 42, 49, 50),
        "fork vfork execve execveat unshare setns": (57, 58, 59, 322, 272, 308),
        "kill tkill tgkill ptrace pidfd_open pidfd_send_signal": (62, 200, 234, 101, 434, 424),
        "creat truncate rename renameat renameat2": (85, 76, 82, 264, 316),
        "mkdir mkdirat rmdir unlink unlinkat": (83, 258, 84, 87, 263),
        "link linkat symlink symlinkat mknod mknodat": (86, 265, 88, 266, 133, 259),
        "chmod fchmod fchmodat fchmodat2": (90, 91, 268, 452),
        "chown fchown lchown fchownat": (92, 93, 94, 260),
        "utime utimes utimensat futimesat setxattr removexattr": (132, 235, 280, 261, 188, 197),
        "mount umount2 pivot_root chroot reboot": (165, 166, 155, 161, 169),
        "setrlimit prlimit64 io_uring_setup openat2 bpf": (160, 302, 425, 437, 321),
    },
    "aarch64": {
        "socket socketpair connect bind listen": (198, 199, 203, 200, 201),
        "execve execveat unshare setns": (221, 281, 97, 268),
        "kill tkill tgkill ptrace pidfd_open pidfd_send_signal": (129, 130, 131, 117, 434, 424),
        "truncate renameat renameat2": (45, 38, 276),
        "mkdirat unlinkat linkat symlinkat mknodat": (34, 35, 37, 36, 33),
        "fchmod fchmodat fchmodat2 fchown fchownat utimensat": (52, 53, 452, 55, 54, 88),
        "setxattr removexattr": (5, 14),
        "mount umount2 pivot_root chroot reboot": (40, 39, 41, 51, 142),
        "setrlimit prlimit64 io_uring_setup openat2 bpf": (164, 261, 425, 437, 280),
    },
}
# the same as audit events of Python, where there is no seccomp
REFUSED_EVENTS = (
    *("socket.", "subprocess.", "os.fork", "os.exec", "os.posix_spawn", "os.system", "os.kill"),
    *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate"),
    *("os.chmod", "os.chown", "os.utime", "os.setxattr", "shutil.", "resource.", "ctypes.dlopen"),
)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# number, argument that holds the flags: open(path, flags), openat(folder, path, flags)
OPENS = {"x86_64": ((2, 1), (257, 2)), "aarch64": ((56, 2),)}
CLONE = {"x86_64": 56, "aarch64": 220}
CLONE3 = 435  # answered with "no such call": the C library then calls clone, whose flags we see
X32_CALLS = 0x40000000  # x86_64's second table of calls

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000
EPERM, ENOSYS = 1, 38
CLONE_THREAD = 0x00010000
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data


def filter_program(machine: str) -> bytes:
    """The BPF program: instructions of (operation, jump if true, jump if false, value)."""
    refuse, allow = (RETURN, 0, 0, REFUSE | EPERM), (RETURN, 0, 0, ALLOW)
    code = [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, AUDIT_ARCH[machine]),
        refuse,
        (LOAD, 0, 0, NUMBER),
        (AT_LEAST, 0, 1, X32_CALLS),
        refuse,
        (EQUAL, 0, 1, CLONE3),
        (RETURN, 0, 0, REFUSE | ENOSYS),
        (EQUAL, 0, 4, CLONE[machine]),
        (LOAD, 0, 0, ARGUMENTS),
        (ANY_BIT, 0, 1, CLONE_THREAD),
        allow,
        refuse,
    ]
    for number, argument in OPENS[machine]:
        code += [
            (EQUAL, 0, 4, number),
            (LOAD, 0, 0, ARGUMENTS + 8 * argument),
            (ANY_BIT, 0, 1, WRITING),
            refuse,
            allow,
        ]
    for number in sum(REFUSED[machine].values(), ()):
        code += [(EQUAL, 0, 1, number), refuse]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in [*code, allow])


def install_filter() -> bool:
    """Put the filter on this process, for good. False where the system has none such."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in REFUSED or sys.maxsize < 2**32:
        return False
    program = filter_program(machine)
    code = ctypes.create_string_buffer(program)
    # struct sock_fprog: number of instructions, and where they are
    head = ctypes.create_string_buffer(
        struct.pack("@HP", len(program) // 8, ctypes.addressof(code))
    )
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, set_seccomp, mode_filter = 38, 22, 2
    zero = ctypes.c_ulong(0)
    if libc.prctl(no_new_privileges, ctypes.c_ulong(1), zero, zero, zero):
        return False
    return libc.prctl(set_seccomp, ctypes.c_ulong(mode_filter), head, zero, zero) == 0


def install_hook() -> None:
    """Refuse the same from within Python, by an audit hook; C code is not reached."""

    def refuse(event: str, arguments: tuple) -> None:
        writes = event == "open" and arguments[2] & WRITING
        if writes or event.startswith(REFUSED_EVENTS):
            raise PermissionError(f"{event} is not allowed in an answer")

    sys.addaudithook(refuse)


def limit(seconds: float, memory_bytes: int) -> None:
    cpu = math.ceil(seconds) + 1
    for kind, value in (
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def main() -> None:
    result = int(sys.argv[1])
    request = json.load(sys.stdin)
    limit(request["seconds"], request["memory_bytes"])
    if install_filter():
        os.write(result, b"seccomp\n")
    else:
        install_hook()
        os.write(result, b"audit hook\n")
    try:
        # not as __main__, whose blocks are no part of an answer
        exec(compile(request["program"], "answer.py", "exec"), {"__name__": "answer"})
    except BaseException as error:  # SystemExit is no pass either
        os.write(result, type(error).__name__.encode()[:80])
        os._exit(1)
    os.write(result, request["token"].encode())
    os._exit(0)  # no exit handlers, no waiting for threads


if __name__ == "__main__":
    main()
