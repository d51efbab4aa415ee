"""Files of the host: read, written, reached through links and roots."""

# ruff: noqa: SIM115  (a program closes nothing)

from .program import hostile


@hostile("files")
def read_home(given):
    """A secret in the home folder of whoever trains."""
    print(open(given["home_secret"]).read())


@hostile("files", control="root")
def read_shadow(given):
    """The password file."""
    for path in ("/etc/shadow", "/etc/gshadow", "/etc/sudoers"):
        try:
            print(given["token"], len(open(path).read()))
        except OSError as error:
            print(error)


@hostile("files")
def read_host_tmp(given):
    """A file that another program left in /tmp, readable for all."""
    print(open(given["tmp_secret"]).read())


@hostile("files")
def symlink_read(given):
    """The same through links, relative and absolute."""
    import os

    for number, target in enumerate((given["tmp_secret"], "../" * 30 + given["tmp_secret"])):
        os.symlink(target, f"link{number}")
        try:
            print(open(f"link{number}").read())
        except OSError as error:
            print(error)


@hostile("files", control="root")
def proc_root_escape(given):
    """The root, the working folder and the open files of every process in sight."""
    import os

    for pid in os.listdir("/proc"):
        for way in ("root", "cwd/" + "../" * 30):
            if pid.isdigit() or pid == "self":
                try:
                    print(open(f"/proc/{pid}/{way}{given['tmp_secret']}").read())
                except OSError:
                    continue


@hostile("files")
def write_outside(given):
    """A file in the host's folders; the host looks for it afterwards."""
    import os

    for folder in given["outside"]:
        try:
            with open(os.path.join(folder, "planted"), "w") as file:
                file.write("x")
            if folder.startswith(("/usr", "/etc", "/var", "/lib")) or given["bare"]:
                print(given["token"], folder)
        except OSError as error:
            print(folder, error)


@hostile("files", control="root")
def interpreter_tamper(given):
    """The library that every later program would import."""
    import json
    import os
    import sys

    for path in (json.__file__, os.__file__, sys.executable, *sys.path):
        try:
            if os.path.isdir(path):
                planted = os.path.join(path, "sitecustomize_hostile.py")
                open(planted, "w").close()
                os.unlink(planted)
            else:
                open(path, "r+b").close()
            print(given["token"], path)
        except OSError as error:
            print(path, error)


@hostile("files", control="root")
def chroot_escape(given):
    """Out of the root folder by way of a second one."""
    import os

    os.mkdir("inner")
    os.chroot("inner")
    for _ in range(64):
        os.chdir("..")
    os.chroot(".")
    print(open(given["tmp_secret"]).read())


@hostile("files", control="root")
def mknod_disk(given):
    """The disk itself, as a device of its own making."""
    import os
    import stat

    for number, (major, minor) in enumerate(given["disks"]):
        os.mknod(f"disk{number}", stat.S_IFBLK | 0o600, os.makedev(major, minor))
        print(given["token"])
        try:
            print(len(open(f"disk{number}", "rb").read(512)))
        except OSError as error:
            print(error)


@hostile("files", control="root")
def devices(given):
    """Graphics cards, disks, the kernel's memory and log, terminals."""
    import glob

    wanted = ("nvidia*", "dri/*", "kvm", "vd*", "sd*", "nvme*", "kmsg", "mem", "port", "fuse", "loop*", "net/tun",
              "vhost*", "ptmx", "pts/*", "tty*", "hwrng", "vsock", "console", "snd/*", "input/*", "uinput")  # fmt: skip
    for path in (path for name in wanted for path in glob.glob(f"/dev/{name}")):
        try:
            import os

            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY))
            print(given["token"], path)
        except OSError as error:
            print(path, error)


@hostile("syscalls")
def lock_a_file_of_the_host(given):
    """A lock on the library, which would hold up a program of the host that wants one; and a lease."""
    import fcntl
    import os

    with open(os.__file__) as file:
        for lock in (lambda: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB), lambda: fcntl.fcntl(file, 1026, 1)):
            try:
                lock()
                print(given["token"])
            except OSError as error:
                print(error)


@hostile("files")
def handle_by_inode(given):
    """A file of the host by its handle, past every path."""
    import ctypes
    import os

    libc = ctypes.CDLL(None, use_errno=True)
    handle = (ctypes.c_uint * 34)(128)
    mount = ctypes.c_int()
    if libc.name_to_handle_at(-100, b"/usr", handle, ctypes.byref(mount), 0):
        raise SystemExit(os.strerror(ctypes.get_errno()))
    print(given["token"])
