"""Connects the processes of MLX's group: by the variables of `mlx.launch`, or through torch's store."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import socket
import sys
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from importlib import metadata
from typing import Any

import mlx.core as mx

from ..errors import MisconfigurationException

_PACKAGES = ("mps_trainer", "torch", "transformers", "mlx")
_REACHED_AFTER = 60.0  # seconds to connect to a neighbour
# A connection counts as broken if the other machine has not answered for about 40 seconds: macOS's and Linux's numbers
_IDLE, _INTERVAL, _PROBES = 20, 5, 4
_SILENT = {"darwin": 0x80, "linux": 18}  # TCP_RXT_CONNDROPTIME in seconds, TCP_USER_TIMEOUT in milliseconds


def connect(store: Any, rank: int, size: int) -> tuple[Any, list[socket.socket]]:
    """Returns MLX's group of all processes, and its TCP connections; none over RDMA.

    Args:
        store: torch's, through which processes tell their addresses.

    Raises:
        MisconfigurationException: if a process does not reach its neighbour, or has other versions of packages.
    """
    listener = socket.socket()
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):  # MLX listens at the same port afterwards
        listener.setsockopt(socket.SOL_SOCKET, option, 1)
    listener.bind(("", 0))
    listener.listen()
    own = {"host": socket.gethostname(), "address": _own_address(), "port": listener.getsockname()[1]}
    store.set(f"mlx/{rank}", json.dumps({**own, "versions": _versions()}))
    everybody = [json.loads(store.get(f"mlx/{each}")) for each in range(size)]  # waits for each
    refuse_differences(everybody)
    backend = _launched_over()
    if backend is not None:
        listener.close()
        return _init(backend)
    addresses = [(_reachable(each, own["host"]), each["port"]) for each in everybody]
    with listener:
        _try_neighbour(listener, rank, addresses, everybody)
    if store.add("mlx/tried", 1) == size:  # MLX listens at the same ports, so these have to be closed everywhere
        store.set("mlx/closed", "")
    store.wait(["mlx/closed"], timedelta(seconds=2 * _REACHED_AFTER))
    with _host_file(addresses, rank):
        return _init("ring")


def _versions() -> dict[str, str]:
    found = {"python": ".".join(platform.python_version_tuple()[:2])}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def refuse_differences(everybody: list[dict[str, Any]]) -> None:
    """Raises MisconfigurationException if processes have different versions of a package."""
    for package in everybody[0]["versions"]:
        found = [each["versions"].get(package) for each in everybody]
        if len(set(found)) > 1:
            named = ", ".join(
                f"{version or 'none'} on {each['host']} (process {rank})"
                for rank, (version, each) in enumerate(zip(found, everybody, strict=True))
                if rank == 0 or version != found[0]
            )
            raise MisconfigurationException(
                f"The processes have different versions of {package}: {named}. Install the same version everywhere."
            )


def _launched_over() -> str | None:
    """Returns MLX's backend that `mlx.launch` has set up in the environment."""
    if "MLX_RANK" not in os.environ or "RANK" in os.environ:
        return None
    return "ring" if os.environ.get("MLX_HOSTFILE") else "jaccl" if "MLX_JACCL_COORDINATOR" in os.environ else None


def _own_address() -> str:
    """Returns the IPv4 address of this machine in the network of the first one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((os.environ.get("MASTER_ADDR") or socket.gethostname(), 9))  # sends nothing
        except OSError:
            return "127.0.0.1"
        return probe.getsockname()[0]


def _reachable(other: dict[str, Any], own_host: str) -> str:
    """Returns the address of another process. A first machine may know itself by its loopback address only."""
    if other["address"].startswith("127.") and other["host"] != own_host:
        return socket.gethostbyname(os.environ["MASTER_ADDR"])
    return other["address"]


def _try_neighbour(
    listener: socket.socket, rank: int, addresses: list[tuple[str, int]], everybody: list[dict[str, Any]]
) -> None:
    """Connects to the next process and is connected to. MLX would wait for ever if a firewall was between them."""
    following = (rank + 1) % len(addresses)
    host, port = addresses[following]
    try:
        with socket.create_connection(addresses[following], _REACHED_AFTER):
            listener.settimeout(_REACHED_AFTER)
            listener.accept()[0].close()
    except OSError as error:
        raise MisconfigurationException(
            f"Process {rank} on {everybody[rank]['host']} cannot be connected with its neighbours, among them process "
            f"{following} on {everybody[following]['host']} at {host}:{port} ({error}). See that the machines are in "
            "one network, and let Python accept incoming connections (System Settings, Network, Firewall)."
        ) from error


@contextlib.contextmanager
def _host_file(addresses: list[tuple[str, int]], rank: int) -> Iterator[None]:
    """Sets the variables from which MLX reads a ring, inside."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump([[f"{host}:{port}"] for host, port in addresses], file)
        file.flush()
        os.environ.update(MLX_HOSTFILE=file.name, MLX_RANK=str(rank))
        try:
            yield
        finally:
            del os.environ["MLX_HOSTFILE"], os.environ["MLX_RANK"]


def _init(backend: str) -> tuple[Any, list[socket.socket]]:
    try:
        group = mx.distributed.init(strict=True, backend=backend)
    except RuntimeError as error:
        raise MisconfigurationException(f"MLX's {backend} cannot connect the processes: {error}") from error
    sockets = list(_connections(group.rank())) if backend == "ring" else []
    for each in sockets:
        _detect_loss(each)
    return group, sockets


def _connections(rank: int) -> Iterator[socket.socket]:
    """Yields duplicates of MLX's connections, which have the ports of this process and of the next one."""
    with open(os.environ["MLX_HOSTFILE"], encoding="utf-8") as file:
        ports = [{int(address.rpartition(":")[2]) for address in addresses} for addresses in json.load(file)]
    own, following = ports[rank], ports[(rank + 1) % len(ports)]
    for number in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # the folder itself, and what is no connection
            copied = os.dup(int(number))
            try:
                found = socket.socket(fileno=copied)
            except OSError:
                os.close(copied)
                raise
            if found.family == socket.AF_INET and (
                found.getsockname()[1] in own or found.getpeername()[1] in following
            ):
                yield found


def _detect_loss(connection: socket.socket) -> None:
    """Lets the system end a connection to a machine that is switched off or unplugged. MLX sets no such limit."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle = getattr(socket, "TCP_KEEPIDLE", None) or socket.TCP_KEEPALIVE  # type: ignore[attr-defined]
    for option, value in (
        (idle, _IDLE),
        (socket.TCP_KEEPINTVL, _INTERVAL),
        (socket.TCP_KEEPCNT, _PROBES),
        (_SILENT[sys.platform], 40 * (1000 if sys.platform == "linux" else 1)),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
