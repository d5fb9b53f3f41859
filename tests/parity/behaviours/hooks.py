"""Hooks on modules, parameters and tensors."""

from __future__ import annotations

from tests.parity.behaviours.pieces import Net, batch, gradients, same, step


@same
def hooks_of_parameters_see_the_sum_once(wrap):
    module, seen = Net(), []
    module.first.weight.register_hook(lambda grad: seen.append(grad.clone()) or grad * 2)
    result = step(wrap(module), module, batch())
    assert len(seen) == 1
    return result, seen


@same
def hooks_after_accumulation_run_once(wrap):
    module, seen = Net(), []
    module.second.bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    result = step(wrap(module), module, batch())
    assert len(seen) == 1
    return result, seen


@same
def hooks_that_change_outputs_run_in_every_slot(wrap):
    module = Net()
    module.first.register_forward_hook(lambda _module, _args, output: output * 2)
    module.second.register_forward_pre_hook(lambda _module, args: (args[0] + 1,))
    module.second.register_full_backward_hook(lambda _module, grads, _outer: (grads[0] * 3,))
    return step(wrap(module), module, batch())


@same
def hooks_added_and_removed_later(wrap):
    module, x = Net(), batch()
    model = wrap(module)
    before = model(x)
    handle = module.first.register_forward_hook(lambda _module, _args, output: -output)
    during = model(x)
    handle.remove()
    return before, during, model(x)


@same
def hooks_of_outputs_and_of_the_wrapper(wrap):
    module, seen = Net(), []
    model = wrap(module)
    handle = model.register_forward_hook(lambda _module, _args, output: output + 1)
    output = model(batch())
    handle.remove()
    output.register_hook(lambda grad: seen.append(grad))
    output.sum().backward()
    return output, gradients(module), seen
