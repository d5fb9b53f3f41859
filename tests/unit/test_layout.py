"""The tests mirror the sources: who looks for the tests of a file knows where they are.

`tests/unit` does where a file can be tested alone, `tests/cluster` where it takes several workers.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "lockstitch"
TESTS = [ROOT / "tests" / "unit", ROOT / "tests" / "cluster"]

# Files without a test file of their own, each with the reason.
EXCEPTIONS = {
    "__main__.py": "two lines; run by tests/processes/test_run_command.py",
    "attach/values.py": "declarations; all tests of lockstitch.observe use them",
    "attach/outlines.py": "run by tests/unit/observe/test_grouping.py",
    "dashboard/values.py": "declarations; tests/unit/dashboard/test_history.py uses them",
    "launch/job.py": "owns processes; run by tests/processes/test_run_command.py",
    "launch/first/sitecustomize.py": "runs in workers; tests/processes/test_run_command.py",
    "launch/elastic.py": "owns processes; run by tests/processes/test_elastic.py",
    "launch/multi_host.py": "owns processes; run by tests/processes/test_run_command.py",
    "launch/options.py": "declarations; tests/processes/test_run_command.py gives some",
    "launch/local.py": "owns a process; run by tests/processes/test_run_command.py",
    "errors.py": "declarations",
    "rref/events.py": "declarations; the tests of lifetime use each of them",
    "rref/lifetime/owner_side.py": "tests/unit/rref/test_lifetime.py plays both sides",
    "rref/lifetime/user_side.py": "tests/unit/rref/test_lifetime.py plays both sides",
    "rref/home.py": "an abstract class",
    "rendezvous/membership_events.py": "declarations; test_membership_protocol.py uses each",
    "runtime/interceptor.py": "a protocol",
    "runtime/source.py": "a protocol",
    "runtime/statistics.py": "declarations; the tests of the runtime read them",
    "collectives/backend.py": "a protocol",
    "collectives/events.py": "declarations",
    "collectives/operations.py": "one call each; run by tests/cluster/collectives/test_session.py",
    "collectives/options.py": "declarations",
    "collectives/nccl_bootstrap.py": "run by tests/cluster/collectives/test_device_routes.py",
    "collectives/shared_memory/backend.py": "run by tests/cluster/collectives/test_session.py",
    "collectives/shared_memory/driving.py": "run by tests/cluster/collectives/test_session.py",
    "collectives/shared_memory/in_chunks.py": "run by tests/cluster/collectives/test_session.py",
    "collectives/shared_memory/in_place.py": "run by tests/cluster/collectives/test_session.py",
    "collectives/shared_memory/operations.py": "an abstract class",
    "collectives/shared_memory/log_negotiation.py": "tests/cluster/collectives/test_session.py",
    "collectives/shared_memory/open_sets.py": "run by tests/cluster/collectives/test_session.py",
    "collectives/shared_memory/performing.py": "run by tests/cluster/collectives/test_session.py",
    "collectives/shared_memory/publishing.py": "run by tests/cluster/collectives/test_session.py",
    "collectives/shared_memory/rounds.py": "an abstract class",
    "collectives/shared_memory/routes.py": "run by tests/cluster/collectives/test_session.py",
    "collectives/shared_memory/whole.py": "run by tests/cluster/collectives/test_session.py",
    "collectives/c10d/backend.py": "run by tests/cluster/collectives/test_session.py",
    "collectives/c10d/hierarchical.py": "run by tests/cluster/collectives/test_session.py",
    "collectives/c10d/orders.py": "run by tests/cluster/collectives/test_session.py",
    "collectives/c10d/performing.py": "run by tests/cluster/collectives/test_session.py",
    "c10d/gloo_messages.py": "run by tests/cluster/c10d/test_process_group.py",
    "c10d/membership.py": "run by tests/cluster/c10d/test_process_group.py",
    "c10d/messages.py": "run by tests/cluster/c10d/test_process_group.py",
    "c10d/requests.py": "run by tests/cluster/c10d/test_process_group.py",
    "c10d/works.py": "run by tests/cluster/c10d/test_process_group.py",
    "hvd/runner/launching.py": "starts processes; run by tests/processes/test_hvd_run.py",
    "hvd/common/elastic.py": "names",
    "hvd/common/exceptions.py": "names",
    "hvd/common/process_sets.py": "names",
    "hvd/exceptions.py": "a name",
    "hvd/ray/runner.py": "names",
    "hvd/ray/ray_logger.py": "names",
    "ray/train.py": "imports Ray; run by tests/engines/test_ray_ranks.py",
    "hvd/spark/common.py": "an error; tests/unit/hvd/spark/test_task.py",
    "hvd/spark/conf.py": "names; tests/unit/hvd/spark/test_task.py",
    "hvd/spark/torch.py": "an error; tests/unit/hvd/spark/test_task.py",
    "hvd/spark/lightning.py": "an error; tests/unit/hvd/spark/test_task.py",
    "spark/rank.py": "starts a process; run by tests/processes/test_spark.py",
    "replacement/finder.py": "run by tests/unit/replacement/test_swapping.py",
    "hvd/mpi_ops.py": "names; tests/unit/test_public_api.py pins them",
    "nn/stitch.py": "run by tests/parity/test_data_parallel.py",
    "nn/slots/base.py": "declarations",
    "nn/pipelining/graphs.py": "run by tests/unit/nn/pipelining/test_weight_pass.py, test_stage.py",
    "nn/pipelining/inbox.py": "run by tests/cluster/nn/pipelining/test_pipeline.py",
    "nn/pipelining/running.py": "run by tests/cluster/nn/pipelining/test_pipeline.py",
    "nn/pipelining/steps.py": "run by tests/cluster/nn/pipelining/test_pipeline.py",
    "nn/slots/cuda.py": "run by tests/parity/test_cuda_slots.py, on a GPU by tests/gpu",
    "torch_internals/calls.py": "probes; run by tests/unit/torch_internals/test_registry.py",
    "torch_internals/compiling.py": "probes; run by tests/unit/torch_internals/test_registry.py",
    "torch_internals/distributed.py": "probes; run by tests/unit/torch_internals/test_registry.py",
    "torch_internals/modes.py": "probes; run by tests/unit/torch_internals/test_registry.py",
    "torch_internals/modules.py": "probes; run by tests/unit/torch_internals/test_registry.py",
    "torch_internals/optimizers.py": "probes; run by tests/unit/torch_internals/test_registry.py",
    "torch_internals/gradients.py": "probes; run by tests/unit/torch_internals/test_registry.py",
    "torch_internals/tensors.py": "probes; run by tests/unit/torch_internals/test_registry.py",
    "torch_internals/names.py": "names",
    "transport/base.py": "protocols; what implements them is tested",
    "wire/messages/backward.py": "declarations; test_decoding.py sends each of them",
    "wire/messages/calls.py": "declarations; test_decoding.py sends each of them",
    "wire/messages/groups.py": "declarations; test_decoding.py sends each of them",
    "wire/messages/payload.py": "declarations; test_decoding.py sends each of them",
    "wire/messages/peers.py": "declarations; test_decoding.py sends each of them",
    "wire/messages/references.py": "declarations; test_decoding.py sends each of them",
    "wire/messages/stages.py": "declarations; test_decoding.py sends each of them",
    "wire/frames.py": "declarations",
    "wire/encoding.py": "each test of test_decoding.py begins with it",
    "wire/encodings.py": "declarations; test_pickling.py uses each of them",
    "wire/unpickling.py": "each test of test_pickling.py ends with it",
}


def sources_with_logic() -> list[str]:
    files = (path.relative_to(SOURCES) for path in SOURCES.rglob("*.py"))
    return sorted(str(file) for file in files if file.name != "__init__.py")


@pytest.mark.parametrize("source", [s for s in sources_with_logic() if s not in EXCEPTIONS])
def test_each_source_file_has_its_test_file(source: str) -> None:
    expected = Path(source).with_name(f"test_{Path(source).name}")
    assert any((tests / expected).is_file() for tests in TESTS), (
        f"write tests/unit/{expected} (or tests/cluster/…), or give a reason in EXCEPTIONS"
    )


def test_exceptions_are_files_that_exist() -> None:
    assert [name for name in EXCEPTIONS if not (SOURCES / name).is_file()] == []


@pytest.mark.parametrize(
    "package",
    sorted(str(path.parent.relative_to(SOURCES)) for path in SOURCES.rglob("*/__init__.py")),
)
def test_package_opens_with_a_map_of_its_files(package: str) -> None:
    folder = SOURCES / package
    drawn = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    files = [path.stem for path in folder.glob("*.py") if path.name != "__init__.py"]
    folders = [path.parent.name for path in folder.glob("*/__init__.py")]
    assert [name for name in files + folders if not re.search(rf"\b{name}\b", drawn)] == []


def test_packages_only_map_and_reexport() -> None:
    guilty = [
        str(path.relative_to(SOURCES))
        for path in SOURCES.rglob("__init__.py")
        if re.search(r"^(async )?(def (?!__getattr__)|class )", path.read_text(), re.MULTILINE)
    ]
    assert guilty == []
