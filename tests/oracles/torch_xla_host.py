"""What the host does in a step of PyTorch/XLA: times of tracing, of the sync, by number of blocks. On its CPU client.

    TXENV/bin/python torch_xla_host.py OUT.json
Each row is a process of its own (torch_xla_host.py --row '{...}'); times are minima of 12 steady steps."""
import json, os, subprocess, sys, time, math
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import torch_xla_steps as steps

def row(spec):
    c = {**steps.DEFAULTS, **dict(d=128, ff=256, h=2, kv=2, V=512, S=32, batch=8, mesh=(8,)), **spec}
    c["mesh"], c["names"] = tuple(c["mesh"]), tuple(c["names"])
    steps.CASES["x"] = dict(what="", **c)
    steps.start(math.prod(c["mesh"]))
    import torch, torch_xla, torch_xla.debug.metrics as met
    marks = {}
    model, opt, params, step = steps.build(c)
    real_backward, real_step = torch.Tensor.backward, opt.step
    def backward(self, *a, **k):
        marks["f"] = time.perf_counter(); marks["fc"] = time.process_time()
        real_backward(self, *a, **k)
        marks["b"] = time.perf_counter(); marks["bc"] = time.process_time()
    torch.Tensor.backward = backward
    out = []
    names = lambda: {k: met.counter_value(k) for k in met.counter_names()}
    for i in range(15):
        before = names()
        t0, c0 = time.perf_counter(), time.process_time()
        loss = step()
        t1, c1 = time.perf_counter(), time.process_time()
        torch_xla.sync()
        t2, c2 = time.perf_counter(), time.process_time()
        xs_wait = torch_xla._XLAC._xla_wait_device_ops
        xs_wait([]); t3 = time.perf_counter()
        after = names()
        if i >= 3:
            size = met.metric_data("TensorsGraphSize")[2][-1][1]
            delta = {k: v - before.get(k, 0) for k, v in after.items() if v != before.get(k, 0)}
            out.append(dict(forward=marks["f"] - t0, backward=marks["b"] - marks["f"], optimizer=t1 - marks["b"], trace=t1 - t0, sync=t2 - t1, wait=t3 - t2, trace_cpu=c1 - c0, forward_cpu=marks["fc"] - c0,
                            backward_cpu=marks["bc"] - marks["fc"], optimizer_cpu=c1 - marks["bc"], sync_cpu=c2 - c1, nodes=size, ops=sum(v for k, v in delta.items() if k.startswith("xla::")), compiles=delta.get("UncachedCompile", 0), delta=delta))
    low = lambda k: min(o[k] for o in out)
    mid = lambda k: sorted(o[k] for o in out)[len(out) // 2]
    keys = [k for k in out[0] if k not in ("delta",)]
    metrics = {k: (met.metric_data(k)[0], met.metric_data(k)[1]) for k in met.metric_names() if met.metric_data(k)}
    print("ROW " + json.dumps(dict(spec=spec, parameters=len(params), least={k: low(k) for k in keys}, median={k: mid(k) for k in keys}, counters=out[-1]["delta"], metrics=metrics)))

if __name__ == "__main__":
    if sys.argv[1] == "--row": row(json.loads(sys.argv[2])); sys.exit()
    rows = []
    specs = [dict(L=2), dict(L=8), dict(L=4), dict(L=8, remat=True), dict(L=8, patched=True), dict(L=1), dict(L=8, precision="bf16"), dict(L=8, mesh=(1,)), dict(L=16)]
    for s in specs:
        got = subprocess.run([sys.executable, __file__, "--row", json.dumps(s)], capture_output=True, text=True)
        line = [l for l in got.stdout.splitlines() if l.startswith("ROW ")]
        if not line: print(s, got.stderr[-800:]); continue
        rows.append(json.loads(line[0][4:]))
        m = rows[-1]["least"]; print(s, {k: (round(v * 1e3, 2) if k not in ("nodes", "ops", "compiles") else v) for k, v in m.items()}, flush=True)
        json.dump(dict(cpu=open("/proc/cpuinfo").read().split("model name\t: ")[1].split("\n")[0], torch_xla="2.9.0", rows=rows), open(sys.argv[1], "w"), indent=1)
