"""Training steps of 2 to 4 layers with experts: time, kernels by name and in order, peaks of memory, the host's time to issue.

eager          forward, loss, backward, fused AdamW on bf16 parameters
compile        each layer by torch.compile
graph          the eager step as one CUDA graph
compile_graph  the compiled step as one CUDA graph

Routing is `natural` (what a router with random weights chooses) or `balanced` (experts in turn). The step is timed without the
profiler, and then profiled once. Kernels of a CUDA graph are profiled through its replay.
"""

import dataclasses
import gc
import time

from models import DENSE, MODELS
from points import Point, run, torch

LAYERS = {"qwen3-30b": 4, "qwen3-235b": 2, "deepseek-v3": 2, "gpt-oss-120b": 2, "mixtral-8x7b": 2, "llama3-8b": 4}
HELD = {"deepseek-v3": 64}  # experts that fit: the share of one rank in four
MODES = ("eager", "compile", "graph", "compile_graph")
GUESS_S = {"eager": 8.0, "graph": 9.0, "compile": 40.0, "compile_graph": 45.0}
MOST_KERNELS = 6000  # in the list by order


def plan(tiny):
    names = [name for name in (*MODELS, *DENSE) if name.startswith("tiny") == tiny]
    points = []

    def add(name, priority, mode, batch, routing):
        model = MODELS.get(name) or DENSE[name]
        sequence = 64 if tiny else 8192 if name == "llama3-8b" else 4096
        what = dict(model=name, layers=LAYERS.get(name, 2), experts=HELD.get(name, model.E), batch=batch, sequence=sequence)
        what |= dict(mode=mode, routing=routing)
        what["cudnn_attention"] = not tiny  # where SDPA prefers it; the stub has none
        points.append(Point({"step": what}, priority, "burst", 12.0 if tiny else GUESS_S[mode]))

    for name in names:
        if name in DENSE:
            add(name, 2, "eager", 1, "none")
            add(name, 3, "compile", 1, "none")
            continue
        add(name, 0, "eager", 1, "natural")
        add(name, 1, "eager", 1, "balanced")
        add(name, 1, "eager", 4, "natural")
        compiled = 1 if name in ("qwen3-30b", "gpt-oss-120b") else 3
        add(name, compiled, "compile", 1, "natural")
        add(name, 2, "graph", 1, "natural")
        add(name, compiled + 1, "compile_graph", 1, "natural")
        add(name, 3, "eager", 4, "balanced")
        add(name, 4, "compile", 4, "natural")
        add(name, 4, "graph", 4, "natural")
    return points


class Training:
    """A model, its optimizer, and one batch of random tokens."""

    def __init__(self, what):
        from layers import Transformer

        m = MODELS.get(what["model"]) or DENSE[what["model"]]
        m = dataclasses.replace(m, E=what["experts"])
        torch.manual_seed(0)
        torch._dynamo.reset()
        torch.backends.cuda.enable_cudnn_sdp(what["cudnn_attention"])
        self.model = Transformer(m, what["layers"], what["sequence"], what["routing"] == "balanced")
        if what["mode"].startswith("compile"):
            for at, layer in enumerate(self.model.layers):
                self.model.layers[at] = torch.compile(layer, fullgraph=True, dynamic=False)
        graph = what["mode"].endswith("graph")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True, capturable=graph)
        text = torch.randint(0, m.V, (what["batch"], what["sequence"] + 1), device="cuda")
        self.tokens, self.labels = text[:, :-1].contiguous(), text[:, 1:].contiguous()
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters())
        self.step = self.eager
        for _ in range(3):
            self.eager()
        if graph:
            self.capture()

    def eager(self):
        self.optimizer.zero_grad(set_to_none=True)
        self.model.loss(self.tokens, self.labels).backward()
        self.optimizer.step()

    def capture(self):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.eager()
        torch.cuda.current_stream().wait_stream(side)
        self.optimizer.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.eager()
        self.step = self.graph.replay

    def rows(self):
        """Fewest, mean and most rows of an expert in the first layer, as the embedded tokens choose them."""
        layer = getattr(self.model.layers[0], "_orig_mod", self.model.layers[0])
        if not hasattr(layer.ffn, "choose"):
            return None
        with torch.no_grad():
            x = self.model.embedding(self.tokens)
            x = layer.before_ffn(x + layer.attention(layer.before_attention(x), self.model.table))
            counts = layer.ffn.counts(layer.ffn.choose(x.flatten(0, 1))[1]).tolist()
        return [min(counts), sum(counts) / len(counts), max(counts)]


def kernels(step, kind):
    """Kernels of one step: summed by name, and one by one in order as [name's place, start us, us]."""
    from torch.profiler import ProfilerActivity, profile

    if kind == "none":
        return None
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if kind == "cuda" else [])
    with profile(activities=activities) as profiler:
        step()
        torch.cuda.synchronize()
    wanted = torch.autograd.DeviceType.CUDA if kind == "cuda" else torch.autograd.DeviceType.CPU
    events = [e for e in profiler.events() if e.device_type == wanted and not getattr(e, "is_user_annotation", False)]
    events.sort(key=lambda event: event.time_range.start)
    sums = {}
    for event in events:
        count, us = sums.get(event.name, (0, 0.0))
        sums[event.name] = (count + 1, us + event.time_range.elapsed_us())
    names = sorted(sums, key=lambda name: -sums[name][1])
    place = {name: at for at, name in enumerate(names)}
    start = events[0].time_range.start if events else 0
    span = lambda event: [place[event.name], round(event.time_range.start - start, 2), round(event.time_range.elapsed_us(), 2)]
    return {
        "of": kind, "busy_us": round(sum(us for _, us in sums.values()), 1), "launches": len(events),
        "by_name": [[name[:160], sums[name][0], round(sums[name][1], 2)] for name in names],
        "in_order": [span(event) for event in events[:MOST_KERNELS]],
    }


def timed_step(training, board, seconds):
    """Steps back to back between events, the host at most two ahead."""
    from board import Watch
    from timing import quantiles

    mark = lambda: torch.cuda.Event(enable_timing=True)
    time.sleep(0.2)
    marks, watch, end = [mark()], Watch(board), time.monotonic() + seconds
    marks[0].record()
    while (time.monotonic() < end or len(marks) <= 8) and len(marks) < 400:
        training.step()
        marks.append(mark())
        marks[-1].record()
        watch.look()
        if len(marks) > 2:
            marks[-3].synchronize()
    torch.cuda.synchronize()
    return quantiles([a.elapsed_time(b) * 1000 for a, b in zip(marks, marks[1:])]) | {"board": watch.summary()}


def issue_us(step):
    """The host's time to issue a step from a drained device: the shortest of five."""
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        step()
        times.append((time.perf_counter() - begun) * 1e6)
    torch.cuda.synchronize()
    return round(min(times), 1)


def measure(point, board, settings):
    what = point.what["step"]
    gc.collect()
    torch.cuda.empty_cache()
    begun = time.monotonic()
    training = Training(what)
    torch.cuda.synchronize()
    built_s = time.monotonic() - begun
    torch.cuda.reset_peak_memory_stats()
    row = timed_step(training, board, 0.2 if settings.tiny else 1.5)
    stats = torch.cuda.memory_stats()
    row |= {"peak_allocated": stats["allocated_bytes.all.peak"], "peak_reserved": stats["reserved_bytes.all.peak"]}
    row |= {"parameters": training.parameters, "built_s": round(built_s, 1), "issue_us": issue_us(training.step), "rows": training.rows()}
    try:
        row["kernels"] = kernels(training.step, settings.profile)
    except Exception as error:  # no permission to profile costs the kernels, not the point
        row["kernels"] = {"missing": f"{type(error).__name__}: {error}"[:300]}
    return row


if __name__ == "__main__":
    run(__doc__, plan, measure)
