"""A measurement as a receipt (a JSON row, `tests/receipts/README.md`) and as a scenario with `[measured]`.

Both say the same: the row is mapped to a scenario by `sim/receipt/frameworks/receipt-maker.toml`.
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
    """Name, topology and family of the board; an unknown one needs a topology to be predicted."""
    if topology:
        known = next((board for board in BOARDS.values() if board[1] == topology), None)
        return known or (device_name, topology, topology)
    return BOARDS.get(device_name, (device_name, None, device_name))


def identity(c, family):
    """Unique for a configuration and a family of boards."""
    return f"{family.lower().replace(' ', '-')}-{c.id}"


def compiled(c):
    return {"none": False, "blocks": "blocks", "all": "blocks and loss"}[c.compile]


def row(c, result, topology, group):
    """The receipt."""
    machine, date = result["machine"], datetime.date.today().isoformat()
    name, known_topology, family = hardware(machine["device_name"], topology)
    shape, fsdp = c.shape, c.runtime == "fsdp2"
    mixed = c.precision == "mixed"
    state = "fp32" if mixed else "bf16"
    board = {"name": name, "vendor": "nvidia", "device_name": machine["device_name"], "memory_gb": machine["memory_gb"]}
    if machine["power_limit_w"]:
        board["power_limit_w"] = machine["power_limit_w"]
    if known_topology:
        board["topology"] = known_topology
    # What the scenario's version of PyTorch composes need not be what this one does.
    fused_norm = c.norm == "fused" and result["observed"]["fused_rms_norm"]
    receipt = {
        "id": identity(c, family),
        "lane": "cuda-fsdp2" if fsdp else "single-gpu",
        "hw_family": family,
        "source": {"kind": "own", "repo": "windtunnel", "path": "calibrate/receipts/make.py", "date": date},
        "hardware": board | {"count": 1, "nodes": 1, "gpus_per_node": 8},
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
        "compile": compiled(c),
        "optimizer": f"adamw {c.optimizer}",
        "switches": {
            "runtime": c.runtime, "clip_grad_norm": c.clip, "attention": c.attention, "loss": c.loss,
            "fused_rms_norm": fused_norm, "rope": c.rope, "repeat_kv": c.repeat_kv,
            "persistent_cublas_workspace": result["observed"]["persistent_workspace"],
            "expandable_segments": c.expandable, "clocks": c.clocks,
        },
        "measured": measured(result),
        "quality": {"grade": "A"},
    }
    if fsdp:
        receipt["switches"] |= {"reshard_after_forward": c.reshard, "process_group": group}
    if "time" not in result and "oom" not in result:
        receipt["quality"]["notes"] = "memory only: nothing was computed"
    return receipt


def measured(result):
    """The figures; what the schema has no word for stands under `raw`."""
    figures, raw = {}, {"host_cpu": result["machine"]["host_cpu"]}
    if "oom" in result:
        return {"oom": True, "raw": raw | {"oom": result["oom"]}}
    memory = result["memory"]
    figures["peak_mem_gib"] = memory["allocated"] / GIB
    figures["peak_mem_kind"] = "max allocated"
    figures["peak_mem_reserved_gib"] = memory["reserved"] / GIB
    raw["memory_bytes"] = memory
    if "time" in result:
        time = result["time"]
        figures = {"step_time_s": time["step_time_s"]} | figures
        raw["time"] = time
        raw["issue_s"] = result["issue_s"]
        raw["breakdown"] = result["breakdown"]
        launches = result["breakdown"]["launches"]
        if launches:
            raw["issue_us_per_launch"] = result["issue_s"] / launches * 1e6
    return figures | {"raw": raw}


def toml(value):
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def scenario(c, receipt):
    """The scenario, or none for a board without a topology."""
    topology = receipt["hardware"].get("topology")
    if topology is None:
        return None
    switches, figures = receipt["switches"], receipt["measured"]
    policy = {"every_2": "{ every = 2 }"}.get(c.recompute, toml(c.recompute))
    precision = {"storage": "bf16"}
    if c.precision == "mixed":
        precision = {"storage": "fp32", "param": "bf16", "reduce": "fp32"}
    batch = {"sequence": c.sequence, "micro": c.micro, "accumulation": c.accumulation}
    if c.accumulation > 1 and c.runtime == "fsdp2":
        batch |= {"sync_every_micro_batch": False, "set_is_last_backward": True}
    tables = {
        "topology": {"name": topology, "chips": 1, "clocks": c.clocks},
        "model": {"name": c.shape.name, "layers": c.layers},
        "mesh": {"dp_shard": 1, "dp_replicate": 1},
        "batch": batch,
        "precision": precision,
        "fsdp": {"wrap": "block", "reshard_after_forward": c.reshard} if c.runtime == "fsdp2" else {},
        "compile": {"blocks": c.compile != "none", "loss": c.compile == "all"},
        "activation_checkpointing": {"policy": policy, "early_stop": True, "around_compiled": False},
        "attention": {"backend": c.attention},
        "loss": {"kind": c.loss},
        "optimizer": {"name": "adamw", "implementation": c.optimizer, "clip_grad_norm": c.clip},
        "framework": {
            key: switches[key] for key in ("fused_rms_norm", "persistent_cublas_workspace", "rope", "repeat_kv")
        },
        "memory": {"expandable_segments": c.expandable},
        "measured": {},
    }
    out = tables["measured"]
    if "step_time_s" in figures:
        out["step_time"] = f"{figures['step_time_s']} s"
    if "peak_mem_gib" in figures:
        out["allocated"] = f"{figures['peak_mem_gib']} GiB"
        out["reserved"] = f"{figures['peak_mem_reserved_gib']} GiB"
    if figures.get("oom"):
        out["out_of_memory"] = True
    out |= {"source": "windtunnel:calibrate/receipts/make.py", "lane": receipt["lane"]}
    out |= {"hardware": receipt["hw_family"], "grade": receipt["quality"]["grade"]}
    lines = [
        f"# {receipt['id']}: {receipt['framework']['version']}, {receipt['source']['date']}.",
        f'description = "{c.shape.title}, {c.layers} of {c.shape.layers} blocks, one {receipt["hardware"]["name"]}"',
        f'runtime = "{c.runtime}"',
    ]
    for table, keys in tables.items():
        if keys:
            lines.append(f"\n[{table}]")
            raw = "policy"
            lines += [f"{key} = {value if key == raw else toml(value)}" for key, value in keys.items()]
    return "\n".join(lines) + "\n"
