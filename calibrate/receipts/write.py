"""A measurement as a receipt: a JSON row in the schema of `tests/receipts/README.md`.

`windtunnel` maps it to a scenario by the table `sim/receipt/frameworks/receipt-maker.toml`.
"""

import datetime

GIB = 2**30

# Boards by the name that the driver prints: name in receipts, topology, family.
BOARDS = {
    "NVIDIA H100 80GB HBM3": ("H100-SXM5-80GB", "h100-sxm-80gb", "H100"),
    "NVIDIA H200": ("H200-SXM-141GB", "h200-sxm-141gb", "H200"),
    "NVIDIA A100-SXM4-80GB": ("A100-SXM4-80GB", "a100-sxm-80gb", "A100"),
    "NVIDIA A100-SXM4-40GB": ("A100-SXM4-40GB", "a100-sxm-40gb", "A100"),
    "NVIDIA B200": ("B200-SXM", "b200-sxm", "B200"),
}


def hardware(device_name, topology):
    """Name, topology and family of the board; one that is not known needs a topology to be predicted."""
    if topology:
        return next((board for board in BOARDS.values() if board[1] == topology), (device_name, topology, topology))
    return BOARDS.get(device_name, (device_name, None, device_name))


def identity(c, family, memory_only):
    """Unique for a configuration and a family of boards."""
    return f"{family.lower().replace(' ', '-')}-{c.id}{'-memory-only' if memory_only else ''}"


def hardware_of(machine, options):
    """The board; a row of memory only says for which it stands, not which device computed nothing."""
    name, topology, _ = hardware(machine["device_name"], options.topology)
    board = {"name": name, "vendor": "nvidia", "count": 1, "nodes": 1}
    if not options.memory_only:
        board |= {"device_name": machine["device_name"], "memory_gb": machine["memory_gb"]}
        if machine["power_limit_w"]:
            board["power_limit_w"] = machine["power_limit_w"]
    return board | ({"topology": topology} if topology else {})


def lane(c, options):
    if options.memory_only:
        return "memory-only"
    return "cuda-fsdp2" if c.runtime == "fsdp2" else "single-gpu"


# Of the power limit: from here on a board lowers its clocks.
AT_THE_LIMIT = 0.9


def clocks(c, power_w, limit_w):
    """The regime that steps were timed in: seconds of training suffice for a board to reach its power limit."""
    if power_w and limit_w:
        return "sustained" if power_w >= AT_THE_LIMIT * limit_w else "burst"
    return c.clocks


def row(c, result, options):
    """The receipt."""
    machine, observed, shape = result["machine"], result["observed"], c.shape
    family = hardware(machine["device_name"], options.topology)[2]
    state = "fp32" if c.precision == "mixed" else "bf16"
    switches = {
        "runtime": c.runtime, "clip_grad_norm": c.clip, "attention": c.attention, "loss": c.loss,
        # An older PyTorch composes the norm that a newer one fuses.
        "fused_rms_norm": c.norm == "fused" and observed["fused_rms_norm"], "rope": c.rope, "repeat_kv": c.repeat_kv,
        "persistent_cublas_workspace": observed["persistent_workspace"],
        "expandable_segments": c.expandable,
        "clocks": clocks(c, result.get("time", {}).get("board", {}).get("power_w"), machine["power_limit_w"]),
    }
    if c.runtime == "fsdp2":
        switches |= {"reshard_after_forward": c.reshard, "process_group": options.process_group}
    quality = {"grade": "A"}
    if options.memory_only:
        quality["notes"] = "memory only: PyTorch's own allocator on a device that computes nothing; not a measured run"
    return {
        "id": identity(c, family, options.memory_only),
        "lane": lane(c, options),
        "hw_family": family,
        "source": {
            "kind": "own", "repo": "windtunnel", "path": "calibrate/receipts/make.py",
            "date": datetime.date.today().isoformat(),
        },
        "hardware": hardware_of(machine, options),
        "model": {
            "name": shape.title, "n_layers": c.layers, "hidden": shape.width, "ffn": shape.ffn, "n_heads": shape.heads,
            "n_kv_heads": shape.kv_heads, "head_dim": shape.head_dim, "vocab": shape.vocabulary,
            "tied_embeddings": shape.tied_head, "seq_len": c.sequence,
        },
        "framework": {"name": "receipt maker", "version": f"PyTorch {machine['torch']}", "deps": machine["deps"]},
        "parallel": {"dp": 1, "fsdp": 1, "tp": 1, "pp": 1, "cp": 1},
        "batch": {"micro_batch": c.micro, "global_batch": c.micro * c.accumulation, "grad_accum": c.accumulation},
        "precision": {"compute": "bf16", "params": state, "grads": state, "optimizer": state},
        "recompute": c.recompute,
        "compile": {"none": False, "blocks": "blocks", "all": "blocks and loss"}[c.compile],
        "optimizer": f"adamw {c.optimizer}",
        "switches": switches,
        "measured": measured(result),
        "quality": quality,
    }


def measured(result):
    """The figures; what the schema has no word for stands under `raw`."""
    if "oom" in result:
        return {"oom": True, "raw": {"oom": result["oom"]}}
    memory = result["memory"]
    figures = {
        "peak_mem_gib": memory["allocated"] / GIB,
        "peak_mem_kind": "max allocated",
        "peak_mem_reserved_gib": memory["reserved"] / GIB,
    }
    if "time" not in result:
        return figures | {"raw": {"memory_bytes": memory}}
    raw = {"host_cpu": result["machine"]["host_cpu"], "memory_bytes": memory}
    raw |= {key: result[key] for key in ("time", "issue_s", "breakdown")}
    launches = result["breakdown"].get("launches")
    if launches:
        raw["issue_us_per_launch"] = result["issue_s"] / launches * 1e6
    return {"step_time_s": result["time"]["step_time_s"]} | figures | {"raw": raw}
