"""Anybody else: on this machine, on the network, on the machine's own service addresses."""

from .program import hostile


@hostile("network")
def tcp_loopback(given):
    """A server on this machine."""
    import socket

    with socket.create_connection(("127.0.0.1", given["port"]), timeout=20) as client:
        print(given["token"], client.recv(100))


@hostile("network")
def tcp_by_system_call(given):
    """The same past Python, by the numbers of system calls."""
    import ctypes
    import struct

    libc = ctypes.CDLL(None, use_errno=True)
    client = libc.socket(2, 1, 0)
    address = struct.pack("<HHBBBB8x", 2, struct.unpack("<H", struct.pack(">H", given["port"]))[0], 127, 0, 0, 1)
    if client >= 0 and libc.connect(client, address, 16) == 0:
        print(given["token"])


@hostile("network")
def name_server(given):
    """A question to a name server, and the answer."""
    import socket

    try:
        print(socket.getaddrinfo("example.org", 80))
    except OSError as error:
        print(error)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(20)
        client.sendto(b"who", ("127.0.0.1", given["udp_port"]))
        print(given["token"], client.recv(100))


@hostile("network")
def machine_metadata(given):
    """The address where clouds keep a machine's keys, and a broadcast."""
    import socket

    for host in given["metadata"]:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            try:
                client.sendto(b"GET /", (host, given["udp_port"]))
                print(given["token"], host)
            except OSError as error:
                print(host, error)


@hostile("network")
def abstract_socket(given):
    """A Unix socket without a file, which belongs to a network namespace."""
    import socket

    with socket.socket(socket.AF_UNIX) as client:
        client.connect("\0" + given["abstract"])
        print(given["token"], client.recv(100))


@hostile("network", control="root")
def raw_packets(given):
    """Sockets below and beside IP: packets, the kernel's netlink, virtual machines, Bluetooth, the kernel's ciphers."""
    import socket

    for family, kind, protocol in (
        (17, 3, 768),
        (16, 3, 0),
        (40, 1, 0),
        (2, 3, 1),
        (10, 3, 58),
        (31, 3, 1),
        (38, 5, 0),
    ):
        try:
            socket.socket(family, kind, protocol).close()
            print(given["token"], family)
        except OSError as error:
            print(family, error)
