"""What stands around the matmuls of experts: choosing, counting, sorting, moving rows, activations, biases, and reading counts.

Shapes: T tokens, D width, E experts, k experts of a token, R = T k rows, F inner size. Where an operation adds into zeros, filling
them is in its time. Reading counts back is timed by the host: launch, copy and synchronisation.

To add an operation, add a function `name(model, T, pool)` that returns a call, and its name to a list.
"""

from models import MODELS
from points import Point, run, torch

TOKENS = (4096, 8192, 16384, 32768)
CHOOSING = ["router_bf16", "router_fp32", "softmax_fp32", "softmax_fp32_backward", "sigmoid_fp32", "topk_sorted", "topk_unsorted", "topk_of_groups"]
COUNTING = ["histc", "bincount", "one_hot_sum", "argsort_stable", "sort_int32", "cumsum_counts"]
MOVING = ["index_select", "gather_expanded", "index_select_backward", "scatter_add", "scatter_add_fp32", "index_add", "weigh_rows"]
ACTIVATING = ["swiglu", "swiglu_backward", "swiglu_probs", "swiglu_probs_backward"]
BIASED = ["bias_rows", "bias_fp32_rows", "bias_fp32_backward", "clamped_geglu_bias", "clamped_geglu_bias_backward"]
READING = ["counts_tolist", "counts_item", "counts_to_pinned", "synchronize_only"]
COMPILED = ["swiglu_probs", "swiglu_probs_backward", "clamped_geglu_bias", "clamped_geglu_bias_backward"]


def plan(tiny):
    models = [m for m in MODELS.values() if m.name.startswith("tiny") == tiny]
    points = []

    def add(operation, model, tokens, priority, guess_s=0.0, how="eager", regime="burst"):
        what = dict(operation=operation, model=model.name, tokens=tokens, how=how, D=model.D, F=model.F, E=model.E, top_k=model.top_k)
        points.append(Point({"permutation": what}, priority, regime, guess_s))

    for model in models:
        for tokens in (64,) if tiny else TOKENS:
            names = CHOOSING + COUNTING + MOVING + ACTIVATING + (BIASED if model.biases else [])
            for name in names:
                if name == "topk_of_groups" and model.router != "sigmoid":
                    continue
                add(name, model, tokens, {64: 0, 8192: 0, 32768: 1}.get(tokens, 2))
        for name in READING:
            add(name, model, 64 if tiny else 8192, 0)
        for name in COMPILED:
            if model.biases == ("geglu" in name):
                add(name, model, 64 if tiny else 8192, 3, 12.0, "compile")
        for name in ("index_select", "scatter_add", "swiglu_probs"):
            add(name, model, 64 if tiny else 32768, 3, regime="sustained")
    return points


def swiglu(gate_up):
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def swiglu_probs(gate_up, probs):
    """As Megatron-Core does it: probabilities multiply in fp32, before the down projection."""
    return (swiglu(gate_up.float()) * probs[:, None]).to(gate_up.dtype)


def clamped_geglu_bias(gate_up, bias_rows, alpha=1.702, limit=7.0):
    """GPT-OSS: x sigmoid(alpha x) (up + 1), both clamped, gate and up interleaved."""
    gate_up = gate_up + bias_rows
    gate, up = gate_up[..., ::2], gate_up[..., 1::2]
    gate, up = gate.clamp(max=limit), up.clamp(min=-limit, max=limit)
    return gate * torch.sigmoid(alpha * gate) * (up + 1)


def backward_of(function, *inputs):
    """A call of the backward pass alone; what forward saves is kept."""
    inputs = [tensor.detach().requires_grad_() for tensor in inputs]
    out = function(*inputs)
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True)


class Case:
    """Tensors of a model and a number of tokens, made when an operation asks for them."""

    def __init__(self, model, tokens, pool):
        self.model, self.T, self.R = model, tokens, tokens * model.top_k
        self.pool = pool

    def bf16(self, *shape):
        return self.pool.take(*shape)

    def scores(self):
        return torch.randn(self.T, self.model.E, device="cuda")

    def chosen(self):
        """Experts of each token, (T, k), all different within a token."""
        return torch.rand(self.T, self.model.E, device="cuda").topk(self.model.top_k, dim=-1).indices

    def order(self):
        """Which token each sorted row is of."""
        return self.chosen().flatten().argsort(stable=True) // self.model.top_k

    def counts(self):
        """Rows of each expert, made on the host so that they are whole numbers on any device."""
        each, rest = divmod(self.R, self.model.E)
        return torch.tensor([each + (at < rest) for at in range(self.model.E)], device="cuda")

    def rows_of_bias(self, bias):
        return torch.repeat_interleave(bias, self.counts(), dim=0, output_size=self.R)


def call_of(name, c, how):
    m, F = c.model, torch.nn.functional
    wrap = (lambda f: torch.compile(f, dynamic=False, fullgraph=True)) if how == "compile" else (lambda f: f)
    fp32 = lambda *shape: torch.randn(shape, device="cuda")
    if name.startswith("router"):
        dtype = torch.bfloat16 if name == "router_bf16" else torch.float32
        x, w = c.bf16(c.T, m.D).to(dtype), c.bf16(m.E, m.D).to(dtype)
        return lambda: F.linear(x, w)
    if name.startswith(("softmax", "sigmoid", "topk")):
        s, wide = c.scores(), c.scores().bfloat16()
        groups = s.view(c.T, 8, -1)
        return {
            "softmax_fp32": lambda: F.softmax(wide, dim=-1, dtype=torch.float32),
            "softmax_fp32_backward": backward_of(lambda x: F.softmax(x, dim=-1, dtype=torch.float32), wide),
            "sigmoid_fp32": lambda: torch.sigmoid(wide.float()),
            "topk_sorted": lambda: torch.topk(s, m.top_k, dim=-1),
            "topk_unsorted": lambda: torch.topk(s, m.top_k, dim=-1, sorted=False),
            "topk_of_groups": lambda: groups.topk(2, dim=-1).values.sum(-1).topk(4, dim=-1, sorted=False),
        }[name]
    if name in COUNTING:
        chosen = c.chosen().flatten()
        small, counts = chosen.int(), c.counts()
        return {
            "histc": lambda: torch.histc(chosen.float(), bins=m.E, min=0, max=m.E),
            "bincount": lambda: torch.bincount(chosen, minlength=m.E),
            "one_hot_sum": lambda: F.one_hot(chosen, m.E).sum(0),
            "argsort_stable": lambda: torch.argsort(chosen, stable=True),
            "sort_int32": lambda: torch.sort(small),
            "cumsum_counts": lambda: torch.cumsum(counts, 0, dtype=torch.int32),
        }[name]
    if name in MOVING:
        x, rows, order = c.bf16(c.T, m.D), c.bf16(c.R, m.D), c.order()
        wide, probs = order[:, None].expand(c.R, m.D), fp32(c.R, 1)
        zeros = lambda dtype: torch.zeros(c.T, m.D, device="cuda", dtype=dtype)
        return {
            "index_select": lambda: x.index_select(0, order),
            "gather_expanded": lambda: torch.gather(x, 0, wide),
            "index_select_backward": backward_of(lambda t: t.index_select(0, order), x),
            "scatter_add": lambda: zeros(rows.dtype).scatter_add_(0, wide, rows),
            "scatter_add_fp32": lambda: zeros(torch.float32).scatter_add_(0, wide, rows.float()),
            "index_add": lambda: zeros(rows.dtype).index_add_(0, order, rows),
            "weigh_rows": lambda: (rows.float() * probs).to(rows.dtype),
        }[name]
    gate_up = c.bf16(c.R, 2 * m.F)
    if name in ACTIVATING:
        probs = fp32(c.R)
        function, inputs = (swiglu, [gate_up]) if "probs" not in name else (swiglu_probs, [gate_up, probs])
    else:
        bias = fp32(m.E, 2 * m.F)
        rows = c.rows_of_bias(bias.bfloat16())
        if name == "bias_rows":
            return lambda: gate_up + c.rows_of_bias(bias.bfloat16())
        if name == "bias_fp32_rows":
            return lambda: (gate_up + c.rows_of_bias(bias)).bfloat16()
        if name == "bias_fp32_backward":
            owner = torch.repeat_interleave(torch.arange(m.E, device="cuda"), c.counts(), output_size=c.R)
            return lambda: torch.zeros_like(bias).index_add_(0, owner, gate_up.float())
        function, inputs = clamped_geglu_bias, [gate_up, rows]
    function = wrap(function)
    return backward_of(function, *inputs) if name.endswith("backward") else lambda: function(*inputs)


def reading(name, c):
    """Counts on the host, as dispatchers do it before they can send rows."""
    chosen = c.chosen().flatten()
    count = lambda: torch.histc(chosen.float(), bins=c.model.E, min=0, max=c.model.E).int()
    pinned = torch.empty(c.model.E, dtype=torch.int32, pin_memory=True)
    flag = torch.ones(1, device="cuda")

    def to_pinned():
        pinned.copy_(count(), non_blocking=True)
        torch.cuda.current_stream().synchronize()

    return {
        "counts_tolist": lambda: count().tolist(), "counts_item": flag.item, "counts_to_pinned": to_pinned,
        "synchronize_only": torch.cuda.synchronize,
    }[name]


pools = []


def measure(point, board, settings):
    from pool import Pool
    from timing import timed, timed_by_host

    what = point.what["permutation"]
    if not pools:
        pools.append(Pool(settings.tiny))
    if what["how"] == "compile":
        torch._dynamo.reset()  # each shape is compiled by itself
    case = Case(MODELS[what["model"]], what["tokens"], pools[0])
    if what["operation"] in READING:
        return timed_by_host(reading(what["operation"], case), board)
    return timed([call_of(what["operation"], case, what["how"])], point.regime, board) | {"rows": case.R}


if __name__ == "__main__":
    run(__doc__, plan, measure)
