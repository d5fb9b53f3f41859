"""Pods, played by namespaces of this machine: what a manifest says is done to a process.

Each has a network, a host name and process ids of its own (its program is process 1, as in a
container), finds the others by a hosts file in place of the cluster's DNS, runs in the pod's group
without any capability, as a user of its own if that one may run this Python (else as root), with
the Secret mounted where the manifest says, and with no environment but that of the manifest.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

USER = "1000"
SUBNET = "10.213.78."
HOSTS = Path("/etc/netns")  # `ip netns exec` lays what is in there over /etc

WITHOUT_RIGHTS = ("--inh-caps=-all", "--bounding-set=-all")

_ENTER = f"""
set -e
hostname "$1"; folder="$2"; user="$3"; group="$4"; secret="$5"; shift 5
mount -t tmpfs -o mode=0755 tmpfs /run
if [ -n "$folder" ]; then
    mkdir -p "$folder"
    install -m 0440 -o 0 -g "$group" "$secret" "$folder/secret"
fi
exec setpriv --reuid "$user" --regid "$user" --groups "$group" \\
    {" ".join(WITHOUT_RIGHTS)} env -i "$@"
"""


class Pod:
    """A pod of the `spec` of a manifest: its `index` in the Job, its `name`, and its `address`."""

    def __init__(self, cluster: Cluster, spec: dict[str, Any], index: int, name: str) -> None:
        self.name = name
        self.network = cluster.network(index)
        self.address = f"{SUBNET}{index + 1}"
        (self.container,) = spec["containers"]
        self._cluster = cluster
        self._index = index
        self._group = spec.get("securityContext", {}).get("fsGroup", 0)
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Runs the container's command, as process 1 of the pod."""
        self._process = subprocess.Popen(
            [*self._entering("--pid", "--fork", "--kill-child", "--mount-proc"), *self._command()],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd="/",
        )

    def execute(self, command: list[str]) -> int:
        """Runs a command as a probe does; returns its exit status."""
        return subprocess.run([*self._entering(), *command], check=False, cwd="/").returncode

    def first_process(self) -> int:
        """Returns the id, outside of the pod, of its process 1."""
        assert self._process is not None
        path = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        (child,) = path.read_text().split()
        return int(child)

    def read_until(self, last: str) -> list[str]:
        """Returns the next lines of the pod's log, up to that one, or to its end."""
        assert self._process is not None
        assert self._process.stdout is not None
        lines = []
        while not lines or lines[-1] != last:
            line = self._process.stdout.readline()
            if not line:
                break
            lines.append(line.rstrip("\n"))
        return lines

    def wait(self, seconds: float = 120) -> tuple[int, str]:
        """Returns the exit status and the rest of the log, when the pod is at its end."""
        assert self._process is not None
        log, _ = self._process.communicate(timeout=seconds)
        return self._process.returncode, log

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.communicate()

    def environment(self) -> dict[str, str]:
        """Returns what stands in the container's environment."""
        fields = {
            "metadata.annotations['batch.kubernetes.io/job-completion-index']": str(self._index),
            "metadata.name": self.name,
            "status.podIP": self.address,
        }
        # Those of an image, of the container's runtime, and of the Job's controller.
        found = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOSTNAME": self.name,
            "HOME": "/",
            "JOB_COMPLETION_INDEX": str(self._index),
        }
        for each in self.container["env"]:
            source = each.get("valueFrom", {})
            if "secretKeyRef" in source:
                found[each["name"]] = self._cluster.secret.read_text().strip()
            elif "fieldRef" in source:
                found[each["name"]] = fields[source["fieldRef"]["fieldPath"]]
            else:
                found[each["name"]] = each["value"]
        return found

    def _entering(self, *more: str) -> list[str]:
        mounts = {each["name"]: each["mountPath"] for each in self.container["volumeMounts"]}
        told = [f"{name}={value}" for name, value in self.environment().items()]
        return [
            *("ip", "netns", "exec", self.network),
            *("unshare", "--uts", "--mount", *more),
            *("sh", "-c", _ENTER, "sh", self.name, mounts.get("secret", "")),
            *(self._cluster.user, str(self._group), str(self._cluster.secret), *told),
        ]

    def _command(self) -> list[str]:
        command: list[str] = self.container["command"]
        return command


class Cluster:
    """Networks for `size` pods, joined by a bridge in one more; a context manager."""

    def __init__(self, size: int, secret: Path) -> None:
        self.secret = secret
        self.user = "0"
        """The id of the user that the pods run as."""
        self._size = size
        self._stack = ExitStack()

    def network(self, index: int) -> str:
        """Returns the name of the network namespace of that pod."""
        return f"lockstitch-{os.getpid()}-pod{index}"

    def name_pods(self, names: dict[int, list[str]]) -> None:
        """Tells all pods by which names each is found, as a headless Service does."""
        lines = ["127.0.0.1 localhost"]
        lines += [f"{SUBNET}{index + 1} {' '.join(given)}" for index, given in names.items()]
        for index in range(self._size):
            folder = HOSTS / self.network(index)
            folder.mkdir(parents=True, exist_ok=True)
            self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
            (folder / "hosts").write_text("\n".join(lines) + "\n")
            (folder / "resolv.conf").write_text("nameserver 127.0.0.1\n")  # which refuses at once

    def add(self, spec: dict[str, Any], index: int, name: str) -> Pod:
        """Returns a pod that is not started yet; it ends with the cluster."""
        pod = Pod(self, spec, index, name)
        self._stack.callback(pod.kill)
        return pod

    def __enter__(self) -> Cluster:
        if os.geteuid() or not all(map(shutil.which, ("ip", "unshare", "setpriv"))):
            pytest.skip("pods are played by root, with the commands ip, unshare and setpriv")
        with ExitStack() as made:
            node = f"lockstitch-{os.getpid()}-node"
            try:
                self._add_network(made, node)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"network namespaces cannot be made here: {error.stderr.decode()}")
            _ip("-n", node, "link", "add", "bridge0", "type", "bridge")
            _ip("-n", node, "link", "set", "bridge0", "up")
            for index in range(self._size):
                network, port = self.network(index), f"port{index}"
                self._add_network(made, network)
                ends = ("peer", "eth0", "netns", network)
                _ip("-n", node, "link", "add", port, "type", "veth", *ends)
                _ip("-n", node, "link", "set", port, "master", "bridge0", "up")
                address = f"{SUBNET}{index + 1}/24"
                _ip("-n", network, "address", "add", address, "dev", "eth0")
                _ip("-n", network, "link", "set", "eth0", "up")
                _ip("-n", network, "link", "set", "lo", "up")
            self._stack.push(made.pop_all())
        as_user = ["setpriv", "--reuid", USER, "--regid", USER, "--clear-groups", *WITHOUT_RIGHTS]
        tried = subprocess.run([*as_user, "env", sys.executable, "-c", ""], capture_output=True)
        if not tried.returncode:
            self.user = USER
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _add_network(self, made: ExitStack, name: str) -> None:
        _ip("netns", "add", name)
        made.callback(_ip, "netns", "delete", name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
