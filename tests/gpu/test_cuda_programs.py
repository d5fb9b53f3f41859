"""Programs for GPUs on a machine with one of them: what `DataParallel` does when it is not told
where, the functions it is made of, and slots and modules of another process on the same GPU."""

from __future__ import annotations

import copy
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

import lockstitch.autograd as dist_autograd
from lockstitch import rpc
from lockstitch.nn import DataParallel, RemoteModule, Replicate, data_parallel, parallel
from lockstitch.nn.slots.cuda import on_stream
from lockstitch.testing import ProcessCluster

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(120),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

one_gpu = pytest.mark.skipif(torch.cuda.device_count() != 1, reason="for a single CUDA device")

GPU = "cuda:0"
STREAMS = [GPU, on_stream(GPU)]


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def alike(one, other):
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def gradients(module):
    return [each.grad for each in module.parameters()]


def trains_like_the_plain_module(model, module, device=GPU):
    """Takes steps with a model, and with a copy of its module on one device."""
    twin = copy.deepcopy(module).to(device)
    optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (module, twin)]
    for i in range(4):
        x = torch.randn(10, 8, generator=torch.Generator().manual_seed(i)).to(device)
        for each, optimizer in zip((model, twin), optimizers, strict=True):
            optimizer.zero_grad()
            each(x).pow(2).mean().backward()
            optimizer.step()
    alike([each.to(device) for each in module.parameters()], list(twin.parameters()))
    return True


# ------------------------------------------------------------------------------------- one GPU


@one_gpu
@pytest.mark.parametrize("start", ["cpu", GPU])
@pytest.mark.parametrize("kind", [DataParallel, nn.DataParallel], ids=["ours", "torchs"])
def test_without_device_ids_the_module_is_run_on_the_one_gpu(start, kind):
    module = net().to(start)
    model = kind(module)
    assert list(model.device_ids) == [0]
    assert next(module.parameters()).device == torch.device(GPU)
    x = torch.randn(6, 8)
    for given in (x, x.to(GPU)):
        output = model(given)
        assert output.device == torch.device(GPU)
        alike(output, module(x.to(GPU)))
    assert trains_like_the_plain_module(model, module)


@pytest.mark.parametrize("place", [0, "cuda:0", "cuda", torch.device(GPU)], ids=str)
def test_a_single_place_is_the_plain_module_there(place):
    module = net()
    model = DataParallel(module, [place])
    assert trains_like_the_plain_module(model, module)
    assert model.slots == ()


def test_arguments_are_brought_to_the_single_gpu_with_their_gradients():
    class Two(nn.Module):
        def forward(self, x, *, scale, name):
            assert x.device == scale.device == torch.device(GPU)
            return x * scale if name else None

    x, scale = torch.randn(4, 2, requires_grad=True), torch.randn(4, 2)
    model = DataParallel(Two(), [0])
    model(x, scale=scale, name="n").sum().backward()
    alike(x.grad, scale)
    alike(model(x, scale=Replicate(scale), name="n").cpu(), x * scale)
    there = x.detach().to(GPU)
    model.module.forward = lambda given: given is there
    assert model(there)


def test_a_module_elsewhere_raises():
    model = DataParallel(net(), STREAMS)
    with pytest.raises(RuntimeError, match="on device cuda:0 .* found one of them on device: cpu"):
        model(torch.randn(4, 8, device=GPU))
    model.to(GPU)
    assert trains_like_the_plain_module(model, model.module)
    model.close()


def test_two_replicas_on_one_gpu_are_the_originals_algorithm():
    module = net().to(GPU)
    model = DataParallel(module, [0, 0])
    assert trains_like_the_plain_module(model, module)
    assert model.slots == ()


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("thread", ValueError, "works on the CPU, the module is on cuda:0: use slots on streams"),
        ("fork", RuntimeError, "in which CUDA is in use cannot be forked; use slots that are thr"),
    ],
)
def test_slots_of_the_cpu_say_that_they_are_none_of_a_gpu(kind, error, words):
    model = DataParallel(net().to(GPU), [GPU, kind])
    with pytest.raises(error, match=words):
        model(torch.randn(4, 8, device=GPU))


def test_slots_of_the_cpu_work_beside_a_gpu_in_use():
    module = net()
    model = DataParallel(module, ["cpu", "cpu"])
    assert trains_like_the_plain_module(model, module, "cpu")
    assert len(model.slots) == 1
    model.close()


def test_a_slot_on_a_gpu_of_a_module_of_the_host():
    module = net()
    model = DataParallel(module, ["cpu", on_stream(GPU)])
    assert trains_like_the_plain_module(model, module, "cpu")
    (slot,) = model.slots
    assert slot.statistics.parameter_bytes == 3 * sum(p.nbytes for p in module.parameters())
    model.close()


FORKS_BESIDE_AN_IDLE_GPU = """
    import torch
    from torch import nn
    from lockstitch.nn import DataParallel

    assert torch.accelerator.is_available()
    module = nn.Linear(4, 3)
    model = DataParallel(module, ["fork", "fork"])
    x = torch.randn(6, 4)
    model(x).sum().backward()
    found = module.weight.grad.clone()
    module.zero_grad()
    module(x).sum().backward()
    torch.testing.assert_close(found, module.weight.grad)
    assert not torch.cuda.is_initialized()
    model.close()
    try:
        model(x)
    except RuntimeError as error:
        assert "cannot be forked" in str(error)
    else:
        raise AssertionError("forked after a backward pass")
    print("done")
"""


def test_forks_work_beside_a_gpu_that_is_not_in_use():
    program = textwrap.dedent(FORKS_BESIDE_AN_IDLE_GPU)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.stdout.strip() == "done", done.stderr


# ------------------------------------------------------------------------------- the functions


@pytest.mark.parametrize("places", [[0], [GPU], [0, 0], STREAMS], ids=["0", "name", "twice", "st"])
def test_the_functional_form(places):
    module, x = net().to(GPU), torch.randn(6, 8)
    output = data_parallel(module, x, places)
    alike(output, module(x.to(GPU)))
    output.sum().backward()
    found = [each.clone() for each in gradients(module)]
    module.zero_grad()
    module(x.to(GPU)).sum().backward()
    alike(found, gradients(module))


def test_the_functional_form_gathers_on_the_host():
    module, x = net().to(GPU), torch.randn(6, 8, device=GPU)
    output = data_parallel(module, x, [0, 0], output_device=-1)
    assert output.device.type == "cpu"
    alike(output, module(x).cpu())


def test_scatter_and_gather_are_torchs_on_one_gpu():
    x = torch.randn(5, 3, requires_grad=True)
    given = {"x": x, "list": [x * 2, 7]}
    (ours,), (theirs,) = parallel.scatter(given, [0]), nn.parallel.scatter(given, [0])
    alike(ours["x"], theirs["x"])
    alike(ours["list"][0], theirs["list"][0])
    assert ours["x"].device == torch.device(GPU)
    pieces = parallel.scatter(x, [GPU, GPU])
    assert [len(piece) for piece in pieces] == [3, 2]
    for place in ("cpu", GPU, -1):
        joined = parallel.gather(pieces, place)
        assert joined.device.type == ("cuda" if place == GPU else "cpu")
        (gradient,) = torch.autograd.grad(joined.pow(2).sum(), x, retain_graph=True)
        alike(gradient, 2 * x.detach())


def test_replicas_and_their_gradients():
    module, x = net().to(GPU), torch.randn(6, 8, device=GPU)
    replicas = parallel.replicate(module, [0, 0])
    outputs = parallel.parallel_apply(replicas, list(x.chunk(2)), devices=[0, 0])
    parallel.gather(outputs, 0).sum().backward()
    found = [each.clone() for each in gradients(module)]
    module.zero_grad()
    module(x).sum().backward()
    alike(found, gradients(module))
    (only,) = parallel.replicate(module, [0], detach=True)
    assert not only(x).requires_grad


def test_the_functions_of_comm_on_one_gpu():
    x, host = torch.randn(4, 3, device=GPU), torch.randn(4, 3)
    comm = parallel.comm
    for places in ([0], [0, 0]):
        for copies in comm.broadcast_coalesced([x, x + 1j, host], places):
            assert all(each.device == x.device for each in copies)
            alike(copies, [x, x + 1j, host.to(GPU)])
        for copy_ in comm.broadcast(host, places):
            alike(copy_, host.to(GPU))
    assert comm.reduce_add([x], 0) is x
    alike(comm.reduce_add([x, x, x], 0), 3 * x)
    alike(comm.reduce_add_coalesced([[x, x * 2], [x, x]], 0), (2 * x, 3 * x))
    alike(comm.reduce_add_coalesced([[x]], 0), (x,))
    sparse = torch.eye(3, device=GPU).to_sparse()
    assert comm.reduce_add([sparse, sparse], 0).is_sparse
    alike(torch.cat(comm.scatter(x, [0, 0], [1, 3])), x)
    out = torch.empty(8, 3, device=GPU)
    alike(comm.gather([x, x], out=out), torch.cat([x, x]))


# ------------------------------------------------------------------------- another process


def make_net():
    return net()


def train_with_a_remote_slot(place, home):
    module = net().to(home)
    model = DataParallel(module, [home, place])
    try:
        assert trains_like_the_plain_module(model, module, home)
        with model.no_sync():
            model(torch.randn(6, 8, device=home)).sum().backward()
        assert all(each.device == torch.device(home) for each in gradients(module))
        x = torch.randn(6, 8, device=home, requires_grad=True)
        (gradient,) = torch.autograd.grad(model(x).pow(2).sum(), x, create_graph=True)
        (expected,) = torch.autograd.grad(module(x).pow(2).sum(), x, create_graph=True)
        alike(gradient, expected)
        weights = list(module.parameters())[0:2]
        alike(
            torch.autograd.grad(gradient.pow(2).sum(), weights),
            torch.autograd.grad(expected.pow(2).sum(), weights),
        )
        return True
    finally:
        model.close()


def draw_with_a_remote_slot():
    model = DataParallel(nn.Dropout(0.5), ["cpu", f"worker1/{GPU}"])
    x = torch.ones(64, 4)

    def run(seed):
        torch.manual_seed(seed)
        return model(x), model(x)

    first, again = run(1), run(1)
    model.close()
    halves = first[0].chunk(2)
    return (
        all(torch.equal(one, other) for one, other in zip(first, again, strict=True)),
        torch.equal(*halves),
        torch.equal(halves[1], first[1].chunk(2)[1]),
    )


def use_a_remote_module():
    remote = RemoteModule(f"worker1/{GPU}", make_net)
    x = torch.randn(6, 8, requires_grad=True)
    output = remote(x)
    assert output.device.type == "cpu"
    assert str(remote.remote_parameters()[0].to_here().device) == GPU
    alike(remote.forward_async(x).wait(), output)
    alike(remote(x.to(GPU)), output)
    with dist_autograd.context() as context:
        loss = remote(x).pow(2).sum()
        dist_autograd.backward(context, [loss])
        ours = dist_autograd.get_gradients(context)[x]
        theirs = rpc.rpc_sync("worker1", first_gradient, (context, remote.remote_parameters()[0]))
    module = net()
    alike(output, module(x))
    module(x).pow(2).sum().backward()
    alike(ours, x.grad)
    alike(theirs, module[0].weight.grad)
    return True


def first_gradient(context, parameter):
    return dist_autograd.get_gradients(context)[parameter.local_value()].cpu()


@pytest.mark.parametrize("home", ["cpu", GPU])
def test_a_slot_of_another_process_on_the_same_gpu(home):
    with ProcessCluster(2) as cluster:
        place = f"worker1/{GPU}"
        assert cluster.start("worker0", train_with_a_remote_slot, place, home).result(100)
        if home == "cpu":
            random = cluster.start("worker0", draw_with_a_remote_slot).result(60)
            assert random == (True, False, False)


def test_a_module_of_another_process_on_the_same_gpu():
    with ProcessCluster(2) as cluster:
        assert cluster.start("worker0", use_a_remote_module).result(100)
