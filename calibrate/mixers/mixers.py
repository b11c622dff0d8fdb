"""Times the kernels of mixers that are not attention, one JSON line a point.

    python mixers.py OUT.jsonl --minutes 5      times; the same command goes on where the last one stopped
    python mixers.py OUT.jsonl --warm 14        compiles only, in that many processes, so that timing finds kernels ready
    python mixers.py OUT.jsonl --list

Forward and backward apart: events around each call after a warm-up and a pause, then one profiled call each. A point
that fails is a line that says why.
"""

import argparse
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path

from common import BOARD, HERE, NULL, append, conv_stand_in, kernels, machine, quantiles, read, smi

import torch
import torch.nn.functional as F

BF16 = torch.bfloat16
UNSTORED = os.environ | {"FLA_CACHE_RESULTS": "0", "TRITON_CACHE_AUTOTUNING": "0"}  # choices of a crowded device are not kept

# Heads, head width, state, groups, chunk, of each model's published config.json (names of its keys differ by family).
SSD = {
    "nemotron-h-8b": (128, 64, 128, 8, 128), "nemotron-h-56b": (256, 64, 256, 8, 128),
    "nemotron-3-nano": (64, 64, 128, 8, 128), "mamba2-2.7b": (80, 64, 128, 1, 256),
    "falcon-h1-34b": (32, 128, 256, 2, 128), "granite-4-h-small": (128, 64, 128, 1, 256),
}
GDN = {"qwen3-next-80b": (16, 32, 128, 128)}  # key heads, value heads, key and value width
KDA = {"kimi-linear-48b": (32, 128)}
LIGHTNING = {"minimax-text-01": (64, 128)}
GLA = {"gla-1.3b": (4, 256, 512)}


def rand(*shape, dtype=BF16, scale=1.0, grad=True):
    return (torch.randn(*shape, device="cuda", dtype=torch.float32) * scale).to(dtype).requires_grad_(grad)


def split(heads, groups, tp):
    """Heads and groups of one of `tp` ranks; a group is never split."""
    return heads // tp, max(1, groups // tp)


def ssd(model, b, t, tp):
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    heads, p, n, groups, q = SSD[model]
    h, g = split(heads, groups, tp)
    x, dt = rand(b, t, h, p), rand(b, t, h)
    bb, c = rand(b, t, g, n), rand(b, t, g, n)
    a = -torch.rand(h, device="cuda").add(1).requires_grad_()
    d, bias = torch.ones(h, device="cuda", requires_grad=True), rand(h, dtype=torch.float32)
    a = a.detach().requires_grad_()
    flops = b * t * (g * 2 * q * n + h * (2 * q * p + 4 * n * p))
    call = lambda: mamba_chunk_scan_combined(x, dt, a, bb, c, q, D=d, dt_bias=bias, dt_softplus=True)
    return call, [x, dt, a, bb, c, d, bias], dict(heads=h, head=p, state=n, groups=g, chunk=q), flops


def ssd_fused(model, b, t, tp):
    from mamba_ssm.ops.triton.ssd_combined import mamba_split_conv1d_scan_combined

    conv_stand_in()
    heads, p, n, groups, q = SSD[model]
    h, g = split(heads, groups, tp)
    inner, wide = h * p, h * p + 2 * g * n
    z = rand(b, t, inner + wide + h)
    w, wb = rand(wide, 4, scale=0.3), rand(wide)
    a = (-torch.rand(h, device="cuda") - 1).requires_grad_()
    d, bias = torch.ones(h, device="cuda", requires_grad=True), rand(h, dtype=torch.float32)
    norm = torch.ones(inner, device="cuda", dtype=BF16, requires_grad=True)
    call = lambda: mamba_split_conv1d_scan_combined(
        z, w, wb, bias, a, d, q, activation="silu", rmsnorm_weight=norm, rmsnorm_eps=1e-5, headdim=p, ngroups=g, norm_before_gate=False
    )
    return call, [z, w, wb, a, d, bias, norm], dict(heads=h, head=p, state=n, groups=g, chunk=q, conv=4, conv_kernel="FLA Triton"), None


def conv(model, b, t, tp):
    from fla.modules.causal_conv1d import causal_conv1d

    if model in SSD:
        heads, p, n, groups, _ = SSD[model]
        h, g = split(heads, groups, tp)
        wide, has_bias = h * p + 2 * g * n, True
    elif model in GDN:
        hk, hv, k, v = GDN[model]
        wide, has_bias = (2 * hk * k + hv * v) // tp, False
    else:
        h, k = KDA[model]
        wide, has_bias = h * k // tp, False
    x, w = rand(b, t, wide), rand(wide, 4, scale=0.3)
    bias = rand(wide) if has_bias else None
    call = lambda: first(causal_conv1d(x, w, bias, activation="silu"))
    return call, [v for v in (x, w, bias) if v is not None], dict(channels=wide, width=4, bias=has_bias, activation="silu"), 2 * 4 * b * t * wide


def first(value):
    return value[0] if isinstance(value, tuple) else value


def gated_norm(model, b, t, tp):
    from mamba_ssm.ops.triton.layernorm_gated import rmsnorm_fn

    if model in SSD:
        heads, p, _, groups, _ = SSD[model]
        h, g = split(heads, groups, tp)
        wide, group, rows, before = h * p, h * p // g, b * t, False
    else:
        _, hv, _, v = GDN[model]
        wide, group, rows, before = v, v, b * t * hv // tp, True
    x, z = rand(rows, wide), rand(rows, wide)
    w = torch.ones(wide, device="cuda", dtype=BF16, requires_grad=True)
    call = lambda: rmsnorm_fn(x, w, None, z=z, eps=1e-5, group_size=group, norm_before_gate=before)
    return call, [x, z, w], dict(rows=rows, width=wide, group=group, norm_before_gate=before), None


def gdn(model, b, t, tp):
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    hk, hv, k, v = GDN[model]
    hk, hv = hk // tp, hv // tp
    q, kk, vv = rand(b, t, hk, k), rand(b, t, hk, k), rand(b, t, hv, v)
    g = F.logsigmoid(torch.randn(b, t, hv, device="cuda") + 3).requires_grad_()
    beta = torch.rand(b, t, hv, device="cuda").to(BF16).requires_grad_()
    c = 64
    flops = b * t * hv * (2 * c * k + 2 * c * (k + v) + 4 * k * v + 2 * k * v + 2 * c * (k + v))
    call = lambda: first(chunk_gated_delta_rule(q, kk, vv, g, beta, use_qk_l2norm_in_kernel=True))
    return call, [q, kk, vv, g, beta], dict(key_heads=hk, value_heads=hv, key=k, value=v, chunk=c, l2norm="in kernel"), flops


def kda(model, b, t, tp):
    from fla.ops.kda import chunk_kda

    h, k = KDA[model]
    h //= tp
    q, kk, vv = rand(b, t, h, k), rand(b, t, h, k), rand(b, t, h, k)
    g = rand(b, t, h, k)
    beta = torch.rand(b, t, h, device="cuda").to(BF16).requires_grad_()
    a_log = torch.rand(h, device="cuda").log().requires_grad_()
    bias = torch.zeros(h * k, device="cuda", requires_grad=True)
    call = lambda: first(
        chunk_kda(q, kk, vv, g, beta, A_log=a_log, dt_bias=bias, use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True)
    )
    return call, [q, kk, vv, g, beta, a_log, bias], dict(heads=h, head=k, gate="in kernel", l2norm="in kernel"), None


def lightning(model, b, t, tp):
    from fla.ops.lightning_attn import chunk_lightning_attn

    h, k = LIGHTNING[model]
    h //= tp
    q, kk, vv = (rand(b, t, h, k) for _ in range(3))
    c = 64
    call = lambda: first(chunk_lightning_attn(q, kk, vv, layer_idx=1, num_layers=80))
    return call, [q, kk, vv], dict(heads=h, head=k, chunk=c), b * t * h * (4 * k * k + 4 * c * k)


def simple_gla(model, b, t, tp):
    from fla.ops.simple_gla import chunk_simple_gla

    h, k = LIGHTNING[model]
    h //= tp
    q, kk, vv = (rand(b, t, h, k) for _ in range(3))
    g = F.logsigmoid(torch.randn(b, t, h, device="cuda") + 3).requires_grad_()
    c = 64
    call = lambda: first(chunk_simple_gla(q, kk, vv, g))
    return call, [q, kk, vv, g], dict(heads=h, head=k, chunk=c, gate="by head"), b * t * h * (4 * k * k + 4 * c * k)


def gla(model, b, t, tp):
    from fla.ops.gla import chunk_gla

    h, k, v = GLA[model]
    h = max(1, h // tp)
    q, kk, vv = rand(b, t, h, k), rand(b, t, h, k), rand(b, t, h, v)
    g = (F.logsigmoid(torch.randn(b, t, h, k, device="cuda")) / 16).requires_grad_()
    c = 64
    call = lambda: first(chunk_gla(q, kk, vv, g))
    return call, [q, kk, vv, g], dict(heads=h, key=k, value=v, chunk=c), b * t * h * (4 * k * v + 2 * c * (k + v))


OPS = {
    "mamba_chunk_scan_combined": ssd, "mamba_split_conv1d_scan_combined": ssd_fused, "causal_conv1d": conv,
    "rmsnorm_gated": gated_norm, "chunk_gated_delta_rule": gdn, "chunk_kda": kda, "chunk_lightning_attn": lightning,
    "chunk_simple_gla": simple_gla, "chunk_gla": gla,
}


def points():
    """(operator, model, batch, sequence, tensor-parallel split), the most valuable first."""
    s, f, c, n = "mamba_chunk_scan_combined", "mamba_split_conv1d_scan_combined", "causal_conv1d", "rmsnorm_gated"
    g, k, l, sg, gl = "chunk_gated_delta_rule", "chunk_kda", "chunk_lightning_attn", "chunk_simple_gla", "chunk_gla"
    q3, km, mm, g1 = "qwen3-next-80b", "kimi-linear-48b", "minimax-text-01", "gla-1.3b"
    h8, h56, nano, m27, fal, gra = SSD
    out = []
    # Every operator once, at 8k tokens of its first model.
    out += [(s, h8, 1, 8192, 1), (g, q3, 1, 8192, 1), (k, km, 1, 8192, 1), (c, h8, 1, 8192, 1), (n, h8, 1, 8192, 1)]
    out += [(l, mm, 1, 8192, 1), (f, h8, 1, 8192, 1), (s, m27, 1, 8192, 1), (s, h56, 1, 8192, 1), (s, nano, 1, 8192, 1)]
    # How time grows with tokens, and whether batch or sequence matters.
    for op, model in ((s, h8), (g, q3), (k, km)):
        out += [(op, model, 1, 2048, 1), (op, model, 1, 32768, 1), (op, model, 4, 4096, 1), (op, model, 1, 65536, 1)]
    out += [(s, fal, 1, 8192, 1), (s, gra, 1, 8192, 1), (c, q3, 1, 8192, 1), (n, q3, 1, 8192, 1), (gl, g1, 1, 8192, 1), (sg, mm, 1, 8192, 1)]
    # Tensor-parallel splits.
    for op, model in ((s, h8), (g, q3), (k, km)):
        out += [(op, model, 1, 8192, 8)]
    out += [(s, h56, 1, 8192, 8), (l, mm, 1, 8192, 8)]
    for op, model in ((c, h8), (n, h8), (f, h8)):
        out += [(op, model, 1, 2048, 1), (op, model, 1, 32768, 1), (op, model, 1, 8192, 8)]
    out += [(l, mm, 1, 32768, 1), (s, nano, 1, 32768, 1), (s, m27, 8, 2048, 1), (s, nano, 8, 4096, 1), (f, m27, 8, 2048, 1)]
    out += [(g, q3, 8, 4096, 1), (k, km, 8, 4096, 1), (s, h8, 8, 4096, 1), (s, h8, 16, 2048, 1)]
    out += [(c, m27, 8, 2048, 1), (n, m27, 8, 2048, 1), (c, km, 1, 8192, 1), (c, nano, 1, 8192, 1), (n, nano, 1, 8192, 1)]
    out += [(s, h8, 1, 16384, 1), (g, q3, 1, 16384, 1), (k, km, 1, 16384, 1), (s, fal, 1, 32768, 1), (s, gra, 1, 32768, 1)]
    out += [(s, h56, 1, 32768, 1), (gl, g1, 8, 2048, 1), (gl, g1, 1, 32768, 1), (sg, mm, 1, 32768, 1), (l, mm, 1, 2048, 1), (c, h8, 1, 65536, 1), (n, h8, 1, 65536, 1)]
    for op, model in ((s, h8), (g, q3), (k, km)):
        out += [(op, model, 1, 8192, 2), (op, model, 1, 8192, 4)]
    return out


def variant(point):
    """Points of one variant use the same compiled kernels."""
    op, model, b, _, tp = point
    return "/".join((op, model, f"tp{tp}", "one" if b == 1 else "many"))


WARMED = HERE / "cache" / "warmed"  # variants whose kernels are compiled, one a line


def name(point):
    op, model, b, t, tp = point
    return f"{op}/{model}/{b}x{t}/tp{tp}"


def timed(call, seconds):
    """Times of calls [us]: a warm-up, a pause, then calls back to back, each between two events, a few ahead of the device."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    time.sleep(0.15)
    event = lambda: torch.cuda.Event(enable_timing=True)
    for _ in range(2):
        call()
    marks, end = [event()], time.monotonic() + seconds
    marks[0].record()
    while (time.monotonic() < end or len(marks) < 12) and len(marks) < 400 and not (NULL and len(marks) > 2):
        call()
        marks.append(event())
        marks[-1].record()
        if len(marks) > 4:
            marks[-5].synchronize()
    torch.cuda.synchronize()
    return quantiles([a.elapsed_time(b) * 1000 for a, b in zip(marks, marks[1:])])


def size(tensors):
    return sum(t.numel() * t.element_size() for t in tensors)


def measure(point, seconds, compile_only=False):
    op, model, b, t, tp = point
    torch.manual_seed(0)
    call, inputs, shape, flops = OPS[op](model, b, t, tp)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    out = call()
    kept, peak = torch.cuda.memory_allocated() - before, torch.cuda.max_memory_allocated() - before
    dout = torch.randn_like(out)
    backward = lambda: torch.autograd.grad(out, inputs, dout, retain_graph=True)
    torch.cuda.reset_peak_memory_stats()
    start = torch.cuda.memory_allocated()
    refused = None
    try:
        backward()
    except Exception as error:  # forward is worth having without it
        refused = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        if compile_only:
            raise
    peak_backward = None if refused else torch.cuda.max_memory_allocated() - start
    torch.cuda.synchronize()
    if compile_only:
        return {}
    row = {
        "kind": "mixer", "id": name(point), "op": op, "model": model, "batch": b, "sequence": t, "tensor_parallel": tp,
        "shape": shape, "dtype": str(out.dtype).removeprefix("torch."), "bytes_in": size(inputs), "bytes_out": size([out]),
        "bytes_kept_after_forward": kept, "bytes_peak_forward": peak, "bytes_peak_backward": peak_backward,
        "flops_forward": flops, "saved": saved(out),
    }
    row["forward_us"] = timed(call, seconds)
    row["forward_kernels"] = kernels(call, 3)
    if refused:
        row["backward_failed"] = refused
    else:
        row["backward_us"], row["backward_kernels"] = timed(backward, seconds), kernels(backward, 3)
    return row | {"board": smi(*BOARD), "finite": bool(torch.isfinite(out).all()) if not NULL else None}


def saved(out):
    """What the operator's own node keeps for backward: shape and type of each tensor."""
    node = out.grad_fn
    for _ in range(6):
        if node is None or hasattr(node, "saved_tensors"):
            break
        node = node.next_functions[0][0] if node.next_functions else None
    if node is None or not hasattr(node, "saved_tensors"):
        return None
    return [[list(t.shape), str(t.dtype).removeprefix("torch.")] for t in node.saved_tensors if t is not None]


def reference(op, i):
    """The recurrence itself, token by token, in fp32."""
    out, unit = [], lambda t: t / (t.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    if op == "mamba_chunk_scan_combined":
        x, dt, a, b, c, d, bias = i
        dt = F.softplus(dt + bias)
        b, c = (t.repeat_interleave(x.shape[2] // t.shape[2], 2) for t in (b, c))
        s = torch.zeros(*x.shape[:1], *x.shape[2:], b.shape[-1], device=x.device)
        for t in range(x.shape[1]):
            s = s * (dt[:, t] * a).exp()[..., None, None] + (dt[:, t, :, None] * x[:, t])[..., None] * b[:, t, :, None]
            out.append((s * c[:, t, :, None]).sum(-1) + d[:, None] * x[:, t])
        return torch.stack(out, 1)
    q, k, v, g = i[:4]
    beta = i[4] if len(i) > 4 else None
    if op == "chunk_kda":
        g = -i[5].exp()[:, None] * F.softplus(g + i[6].view(g.shape[2:]))
    if beta is not None:
        q, k = unit(q), unit(k)
    q, k = (t.repeat_interleave(v.shape[2] // t.shape[2], 2) for t in (q, k))
    g = g if g.ndim == 4 else g[..., None]
    s = torch.zeros(v.shape[0], v.shape[2], k.shape[-1], v.shape[-1], device=v.device)
    for t in range(v.shape[1]):
        s = s * g[:, t].exp()[..., None]
        new = v[:, t]
        if beta is not None:
            new = (new - (s * k[:, t, ..., None]).sum(-2)) * beta[:, t, :, None]
        s = s + k[:, t, ..., None] * new[..., None, :]
        out.append((s * q[:, t, ..., None]).sum(-2) * k.shape[-1] ** -0.5)
    return torch.stack(out, 1)


def check(op, model):
    """Relative errors of the output and of each gradient against the recurrence in fp32, at 256 tokens and one eighth of the heads."""
    torch.manual_seed(1)
    call, inputs, shape, _ = OPS[op](model, 1, 256, 8)
    out = call()
    dout = torch.randn_like(out)
    got = [out, *torch.autograd.grad(out, inputs, dout)]
    exact = [t.detach().float().requires_grad_() for t in inputs]
    want = reference(op, exact)
    want = [want, *torch.autograd.grad(want, exact, dout.float())]
    errors = [round(((a.detach().float() - b.detach()).norm() / b.detach().norm()).item(), 5) for a, b in zip(got, want)]
    return {"kind": "check", "op": op, "model": model, "shape": shape, "relative_error_of_output_and_gradients": errors}


CHECKS = [
    ("mamba_chunk_scan_combined", "nemotron-h-8b"), ("chunk_gated_delta_rule", "qwen3-next-80b"), ("chunk_kda", "kimi-linear-48b"),
    ("chunk_simple_gla", "minimax-text-01"), ("chunk_gla", "gla-1.3b"),
]


def checks(output):
    for op, model in CHECKS:
        try:
            row = check(op, model)
        except Exception as error:
            row = {"kind": "check", "op": op, "model": model, "failed": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
        append(output, row)
        print("check", op, row.get("relative_error_of_output_and_gradients", row.get("failed")), flush=True)


def warm(processes, minutes):
    """Each operator at each split in a process of its own, `processes` at a time: compiled kernels land in the cache."""
    seen, todo = set(), []
    for point in points():
        key = variant(point)
        if key not in seen:
            seen.add(key)
            todo.append(point)
    running, end = [], time.monotonic() + minutes * 60
    begun = time.monotonic()
    while todo or running:
        while todo and len(running) < processes and time.monotonic() < end:
            point = todo.pop(0)
            process = subprocess.Popen([sys.executable, __file__, "-", "--compile", name(point)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=UNSTORED)
            running.append((point, process, time.monotonic()))
        for item in list(running):
            point, process, start = item
            if process.poll() is not None:
                running.remove(item)
                if process.returncode == 0:
                    with WARMED.open("a") as file:
                        file.write(variant(point) + "\n")
                last = process.stderr.read().strip().splitlines()[-1:] if process.returncode else []
                print(f"{name(point):60} {time.monotonic() - start:6.1f} s", *last, flush=True)
        if time.monotonic() > end:
            for _, process, _ in running:
                process.kill()
            print("out of time:", [name(p) for p, _, _ in running], len(todo), "not begun", flush=True)
            break
        time.sleep(0.1)
    print(f"compiled in {time.monotonic() - begun:.0f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, default=0.25, help="of timed calls, forward and backward each")
    parser.add_argument("--only", default="", help="points whose name has one of these words (a,b)")
    parser.add_argument("--warm", type=int, metavar="PROCESSES")
    parser.add_argument("--compile", metavar="POINT")
    parser.add_argument("--check", action="store_true", help="correctness alone")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    todo = [p for p in points() if any(word in name(p) for word in options.only.split(","))]
    if options.list:
        print("\n".join(map(name, todo)))
        return
    if options.check:
        checks(options.output)
        return
    if options.compile:
        measure(next(p for p in points() if name(p) == options.compile), 0, compile_only=True)
        return
    if options.warm:
        warm(options.warm, options.minutes)
        return
    start = time.monotonic()
    rows = read(options.output)
    done = {row["id"] for row in rows if row.get("kind") == "mixer" and "failed" not in row}
    append(options.output, machine())
    if not NULL and not any(row.get("kind") == "check" for row in rows):
        checks(options.output)
    for point in todo:
        if name(point) in done:
            continue
        if time.monotonic() - start > options.minutes * 60:
            print("out of time at", name(point))
            break
        if WARMED.exists() and not NULL and variant(point) not in WARMED.read_text().split():
            print(f"{name(point):60} skipped: its kernels are not compiled yet", flush=True)
            continue
        began = time.monotonic()
        try:
            row = measure(point, options.seconds)
            after = f"{row['backward_us']['median']:10.1f} us" if "backward_us" in row else row["backward_failed"][:100]
            words = f"{row['forward_us']['median']:10.1f} us {after}"
        except Exception as error:
            words = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            row = {"kind": "mixer", "id": name(point), "failed": words, "where": traceback.format_exc().splitlines()[-8:]}
        row["took_s"] = round(time.monotonic() - began, 2)
        append(options.output, row)
        print(f"{name(point):60} {words}  ({row['took_s']} s)", flush=True)
        torch.cuda.empty_cache()
    print("done")


if __name__ == "__main__":
    main()
