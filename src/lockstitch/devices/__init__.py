"""Accelerators: the only place that asks on which kind of device something is.

- `accelerators`: accelerators of any kind, by torch's generic interface
- `guard`: what torch binds to a thread and should not
- `kinds`: which devices there are, and what a tensor or a device is; the host
- `maps`: where a caller's device map sends tensors, and where it brings answers back to
- `moving`: tensors from one device to another
- `pinned`: host memory that a device copies from and to quickly
- `streams`: work that is queued on the streams of GPUs, and who waits for whom

Elsewhere no code uses `torch.cuda`, `is_cuda` or the type of a device.
"""
