"""What the trainer knows: its environment, its open files, its processes, its sockets."""

# ruff: noqa: SIM115

from .program import hostile


@hostile("files")
def environment_secret(given):
    """A key in the trainer's environment."""
    import os

    print(dict(os.environ), open("/proc/self/environ").read())


@hostile("files")
def descriptor_leak(given):
    """Whatever descriptor was left open."""
    import os

    channels = given["channels"]
    for number in range(3, 65536):
        try:
            leads = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if leads.startswith("socket:") and channels:
            channels -= 1
        elif leads != "/dev/null":
            print(given["token"], number, leads)
        try:
            os.set_blocking(number, False)
            print(os.pread(number, 1000, 0))
        except OSError as error:
            print(error)


@hostile("processes", control="root")
def processes_of_the_host(given):
    """What /proc tells of every process in sight: its words, its environment, its memory."""
    import os

    for pid in os.listdir("/proc"):
        if not pid.isdigit() or int(pid) == os.getpid():
            continue
        for name, word in (("cmdline", given["marker"]), ("environ", given["secret_name"])):
            try:
                print(open(f"/proc/{pid}/{name}").read().count(word) * given["token"])
            except OSError:
                continue
        try:
            os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR))
            print(given["token"], pid)
        except OSError:
            continue


@hostile("files")
def engine_socket(given):
    """The socket of a container engine, through which the host is one request away."""
    import socket

    for path in (given["unix_socket"], "/var/run/docker.sock", "/run/docker.sock", "/run/podman/podman.sock"):
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(path)
                print(given["token"], path, client.recv(100))
        except OSError as error:
            print(path, error)
