"""Runs one program under limits, and says which of them this system could enforce.

Not imported: the runner starts this file as a process of its own (`python -I -S confine.py CONFIG`), so that limits
and namespaces are set after the fork in a process without threads. It uses the standard library only.

Three processes come of it: this one; below it the first process of a fresh process namespace, whose end takes every
descendant with it; and below that the program. Where namespaces can't be had, the program still runs under the
limits, and the report says what is missing.
"""

import contextlib
import ctypes
import json
import os
import resource
import sys
from typing import Any

NEWNS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4
NOBODY = 65534


def call(name: str, *arguments: object) -> None:
    """One call into libc; OSError if it fails."""
    if getattr(LIBC, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def become_nobody(config: dict[str, Any]) -> str:
    """Root gives up being root, for limits on processes don't bind it; Python is mounted where nobody can read it."""
    if os.geteuid() != 0:
        return str(config["python"])
    try:
        call("unshare", NEWNS)
        call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
        call("mount", config["prefix"].encode(), config["mount_point"].encode(), None, MS_BIND, None)
    except OSError:
        return str(config["python"])
    python: str = os.path.join(config["mount_point"], os.path.relpath(config["python"], config["prefix"]))
    try:
        os.chown(config["work"], NOBODY, NOBODY)
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, 0)
    except OSError:  # a container without that user
        return str(config["python"])
    # A shared libpython lies below the mount too; without this the loader may take another one of the same version.
    config["environment"]["LD_LIBRARY_PATH"] = os.path.join(config["mount_point"], "lib")
    if os.access(python, os.X_OK) and os.access(config["work"], os.W_OK) and os.access(config["program"], os.R_OK):
        os.setresuid(NOBODY, NOBODY, NOBODY)
        return python
    os.setresuid(0, 0, 0)
    os.setresgid(0, 0, 0)
    del config["environment"]["LD_LIBRARY_PATH"]
    return str(config["python"])


def leave_the_network(report: dict[str, Any]) -> None:
    """Fresh user, network and process namespaces, as many as the system gives."""
    uid, gid = os.getuid(), os.getgid()
    LIBC.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    reason: str | None = None
    for flags in (NEWUSER | NEWNET | NEWPID | NEWIPC, NEWUSER | NEWNET, NEWNET | NEWPID):
        try:
            call("unshare", flags)
        except OSError as error:
            reason = error.strerror
            continue
        if flags & NEWUSER:
            for path, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
                with contextlib.suppress(OSError), open(f"/proc/self/{path}", "w") as file:
                    file.write(text)
        report["network"] = "none"
        report["descendants"] = "ended with the program" if flags & NEWPID else "may outlive the program"
        break
    else:
        report["network"] = f"reachable: this system gives no network namespace ({reason})"
        report["descendants"] = "may outlive the program"
    bound = uid != 0
    report["processes"] = "limited" if bound else "not limited: the limit does not bind root"


def limit(config: dict[str, Any]) -> None:
    megabyte = 1 << 20
    for which, value in (
        (resource.RLIMIT_AS, config["memory"]),
        (resource.RLIMIT_CPU, config["seconds"] + 1),
        (resource.RLIMIT_FSIZE, megabyte),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, config["processes"] + 2),
    ):
        hard = resource.getrlimit(which)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (value, value))


def run_below(python: str, config: dict[str, Any], report: dict[str, Any], answers: int) -> None:
    """The first process of the namespace: starts the program, waits for it, reports, and takes the rest with it."""
    LIBC.prctl(PR_SET_PDEATHSIG, 9, 0, 0, 0)
    program = os.fork()
    if program == 0:
        os.chdir(config["work"])
        command = [python, "-I", "-B", config["program"]]
        try:
            os.execve(python, command, config["environment"])
        finally:
            os._exit(127)
    status = os.waitpid(program, 0)[1]
    report["exit_status"] = os.waitstatus_to_exitcode(status)
    os.write(answers, json.dumps(report).encode())
    os._exit(0)


def main() -> None:
    config = json.loads(sys.argv[1])
    answers = config["answers"]
    os.set_inheritable(answers, False)
    report: dict[str, Any] = {}
    python = become_nobody(config)
    leave_the_network(report)
    limit(config)
    os.write(answers, json.dumps(report).encode() + b"\n")
    first = os.fork()
    if first == 0:
        run_below(python, config, report, answers)
    os.waitpid(first, 0)


if __name__ == "__main__":
    LIBC = ctypes.CDLL(None, use_errno=True)
    main()
