"""Which libraries, launchers and engines are here.

Torch is asked in a process of its own: one that cannot be imported, or crashes, is then a finding.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final

from lockstitch import __version__
from lockstitch.doctor.findings import Finding, good, note, wrong
from lockstitch.versions import RANGE, REQUIREMENT, is_tested

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Ask = Callable[[], "dict[str, Any]"]

PYTHON: Final = ((3, 10), (3, 15))
"""The oldest Python that is supported, and the first that is not."""
_LOSES_LOCKS: Final = (3, 14)
"""The Python in which an interrupt may leave a lock locked: up to 3.14.10 at least, not in 3.15."""

_QUESTIONS: Final = """
import json, sys
answers = {}
import torch
answers["version"] = torch.__version__
answers["cpu"] = torch.backends.cpu.get_cpu_capability()
from lockstitch.devices import kinds
answers["gpus"] = kinds.gpu_names()
answers["built for"] = torch.version.cuda or torch.version.hip or ""
answers["nccl"] = torch.distributed.is_nccl_available()
answers["gloo"] = torch.distributed.is_gloo_available()
import lockstitch.rpc, lockstitch.autograd, lockstitch.hvd, lockstitch.nn
from lockstitch.memory import mapping, ring
answers["segments"] = mapping.IS_AVAILABLE
answers["rings"] = ring.IS_AVAILABLE
from lockstitch.torch_internals.registry import Cost, missing
answers["missing"] = [
    (str(it), it.consequence, it.private.can_be_missed) for it in missing(Cost.THOROUGH)
]
print(json.dumps(answers), file=sys.__stdout__)
"""
_ASK_SECONDS: Final = 120.0
_ENGINES: Final = (("ray", "Ray"), ("pyspark", "Spark"))
_EXTRAS: Final = (("cryptography", "tls", "TLS between hosts"),)
_LAUNCHERS: Final = "torchrun ssh mpirun srun kubectl ray spark-submit".split()


def ask_torch() -> dict[str, Any]:
    """Returns what torch says of itself, and Lockstitch of what it needs of torch; under `error`
    what was said where that fails."""
    command = [sys.executable, "-c", _QUESTIONS]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_ASK_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"it takes more than {_ASK_SECONDS:.0f} s to import"}
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return {"error": lines[-1] if lines else f"exit status {done.returncode}"}
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answers


def look_at_libraries(ask: Ask = ask_torch) -> Iterator[Finding]:
    """Checks versions, features, extras, launchers and engines."""
    yield good("lockstitch", __version__)
    yield check_python(sys.version_info[:2], sysconfig.get_config_var("Py_GIL_DISABLED") == 1)
    answers = ask()
    yield check_torch(answers)
    if "error" not in answers:
        yield from check_internals(answers)
        yield from describe_features(answers)
    yield from describe_others()


def check_python(running: tuple[int, int], is_free_threaded: bool) -> Finding:
    """Checks the version, and that there is a GIL."""
    text = platform.python_version()
    if not PYTHON[0] <= running < PYTHON[1]:
        says = f"{'.'.join(map(str, running))} is not among those that are tested (3.10 to 3.14)"
        return wrong("python", says, "use one that is")
    if is_free_threaded:
        says = f"{text}, without the GIL: not supported, since our tests stand still there"
        return note("python", says, "use the ordinary build")
    if running == _LOSES_LOCKS:
        says = f"{text}: an interrupt (Ctrl-C) may leave a lock locked, so that the program hangs"
        return note("python", says, "where that matters, use 3.13")
    return good("python", text)


def check_torch(answers: dict[str, Any]) -> Finding:
    """Checks that Lockstitch can be imported with this torch, and is tested with it."""
    if "error" in answers:
        return wrong(
            "torch",
            f"Lockstitch cannot be imported with it: {answers['error']}",
            f"install a torch from {RANGE}: pip install '{REQUIREMENT}'",
        )
    text = str(answers["version"])
    if not is_tested(text):
        return note("torch", f"{text} is not among those that are tested ({RANGE})")
    return good("torch", text)


def check_internals(answers: dict[str, Any]) -> Iterator[Finding]:
    """Describes private names of torch that are not what Lockstitch has been tested with, and what
    is off because of that."""
    for says, consequence, can_be_missed in answers["missing"]:
        told = f"{says}. {consequence[0].upper()}{consequence[1:]}"
        remedy = "install a torch that Lockstitch is tested with"
        yield (note if can_be_missed else wrong)("torch", told, remedy)


def describe_features(answers: dict[str, Any]) -> Iterator[Finding]:
    """Describes what calls and reductions can use here."""
    yield good("cpu", f"{platform.machine()}, {answers['cpu']}")
    if answers["gpus"]:
        nccl = "with NCCL" if answers["nccl"] else "without NCCL: reductions go through the host"
        yield good("gpu", f"{', '.join(answers['gpus'])}, {nccl}")
    else:
        built = answers["built for"]
        yield note("gpu", f"none, though torch is built for CUDA {built}" if built else "none")
    ways = ["unix sockets", "TCP"]
    ways += ["shared memory for large tensors"] * answers["segments"]
    ways += ["shared memory for short messages"] * answers["rings"]
    yield good("transports", ", ".join(ways))
    if not answers["gloo"]:
        yield note("transports", "torch has no Gloo: no reductions between hosts")


def describe_others() -> Iterator[Finding]:
    """Describes extras, launchers and engines."""
    for package, extra, what in _EXTRAS:
        found = _version(package)
        if found is None:
            yield note("extras", f"{extra} is not installed: {what}", f"lockstitch[{extra}]")
        else:
            yield good("extras", f"{extra}: {what} ({package} {found})")
    # Those of this environment are beside its Python, also where nobody has activated it.
    path = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)))
    launchers = [name for name in _LAUNCHERS if shutil.which(name, path=path)]
    yield good("launchers", ", ".join(["lockstitch run", *launchers]))
    engines = [f"{name} {_version(package)}" for package, name in _ENGINES if _version(package)]
    yield good("engines", ", ".join(engines) or "none")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
