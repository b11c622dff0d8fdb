#!/usr/bin/env python3
"""Writes the small traces in tests/traces/small: one of each format and era, made by hand after the public ones (see README.md).

Every file is one rank of a job that runs two or three tiny steps: a matmul, an activation, a collective, an optimizer. Numbers are
round so that tests can say what must come out. Run it again after a change: python3 tests/traces/small.py
"""

import gzip
import json
import os
import sqlite3
import struct

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "small")


def write(name, body):
    path = os.path.join(HERE, name)
    with open(path, "wb") as file:
        file.write(gzip.compress(body, mtime=0) if name.endswith(".gz") else body)


# Kineto.

A100 = [{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 85899345920, "computeMajor": 8, "numSms": 108}]
H100 = [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85017493504, "computeMajor": 9, "numSms": 132}]


def event(cat, name, pid, tid, ts, dur, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def kineto_2021():
    """Names, strings and whole microseconds of 2021."""
    base, events = 1623142623460000, []
    for step in range(2):
        t = base + 1000 * step
        c = 100 + 10 * step
        events += [
            event("Operator", f"ProfilerStep#{5 + step}", 25738, "25738", t, 1000, **{"External id": c}),
            event("Operator", "aten::addmm", 25738, "25738", t + 10, 40, **{
                "External id": c + 1, "Input Dims": [[64], [32, 128], [128, 64], [], []],
                "Input type": ["float", "float", "float", "Int", "Int"], "Call stack": "a.py(1): <module>"}),
            event("Runtime", "cudaLaunchKernel", 25738, "25738", t + 20, 10, **{"external id": c + 1, "correlation": c + 1, "cbid": 211}),
            event("Kernel", "volta_sgemm_32x128_tn", 0, "stream 7", t + 100, 200, **{
                "external id": c + 1, "correlation": c + 1, "device": 0, "stream": 7, "grid": [2, 1, 1], "block": [256, 1, 1]}),
            event("Runtime", "cudaMemcpyAsync", 25738, "25738", t + 60, 5, correlation=c + 2),
            event("Memcpy", "Memcpy HtoD (Pinned -> Device)", 0, "stream 7", t + 400, 100, **{
                "correlation": c + 2, "device": 0, "stream": 7, "bytes": 4096}),
            event("Runtime", "cudaDeviceSynchronize", 25738, "25738", t + 500, 100, correlation=c + 3),
            {"ph": "s", "id": c + 1, "pid": 25738, "tid": "25738", "ts": t + 20, "cat": "async", "name": "launch"},
        ]
    events.append({"ph": "M", "name": "process_name", "pid": "Spans", "tid": 0, "args": {"name": "Spans"}})
    events.append({"name": "Iteration Start: PyTorch Profiler", "ph": "i", "s": "g", "pid": "Traces", "tid": "Trace", "ts": base})
    devices = [{"id": 0, "name": "Tesla V100-SXM2-16GB", "totalGlobalMem": 16914055168, "numSms": 80}]
    return {"schemaVersion": 1, "deviceProperties": devices, "traceEvents": events}


def kineto_2023():
    """PyTorch 2.0: whole microseconds, External id repeats the correlation, sizes of collectives on record_param_comms."""
    base, events = 1706850122846000, []
    comms = {"Concrete Inputs": ["", "337", "0", "0", "", "[]", "[]", "8"], "Input Dims": [[[4, 1024]], [], [], [], [], [], [], []],
             "Input type": ["TensorList", "Scalar", "Scalar", "Scalar", "", "ScalarList", "ScalarList", "Scalar"]}
    for step in range(2):
        t = base + 1000 * step
        c = 200 + 10 * step
        events += [
            event("user_annotation", f"ProfilerStep#{3 + step}", 7, 7, t, 1000),
            event("cpu_op", "aten::mm", 7, 7, t + 10, 40, **{
                "External id": 94, "Input Dims": [[4, 256], [256, 1024]], "Input type": ["c10::Half", "c10::Half"],
                "Concrete Inputs": ["", ""]}),
            event("cuda_runtime", "cudaLaunchKernel", 7, 7, t + 20, 10, **{"External id": c + 1, "cbid": 211, "correlation": c + 1}),
            event("kernel", "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn", 0, 7, t + 100, 300, **{
                "External id": c + 1, "device": 0, "stream": 7, "correlation": c + 1, "grid": [8, 1, 1], "block": [128, 1, 1]}),
            event("cpu_op", "c10d::allreduce_", 7, 7, t + 60, 60, **{"Input Dims": [[[4, 1024]], [], [], []]}),
            event("cpu_op", "record_param_comms", 7, 7, t + 70, 40, **comms),
            event("user_annotation", "nccl:all_reduce", 7, 7, t + 75, 30, **{
                "Input type": ["c10::Half"], "Input Dims": [[4, 1024]], "Concrete Inputs": [""]}),
            event("cuda_runtime", "cudaLaunchKernelExC", 7, 7, t + 80, 10, **{"External id": c + 2, "correlation": c + 2}),
            event("kernel", "ncclKernel_AllReduce_RING_LL_Sum_half(ncclDevComm*, unsigned long, ncclWork*)", 0, 24, t + 300, 200, **{
                "External id": c + 2, "device": 0, "stream": 24, "correlation": c + 2, "grid": [24, 1, 1], "block": [512, 1, 1]}),
            {"ph": "f", "id": c + 1, "pid": 0, "tid": 7, "ts": t + 100, "cat": "ac2g", "name": "ac2g", "bp": "e"},
        ]
    return {"schemaVersion": 1, "deviceProperties": A100, "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8},
            "record_shapes": 1, "traceEvents": events, "traceName": "rank0.json"}


def kineto_2025():
    """PyTorch 2.4 and later: nanoseconds, a base, modules, autograd on its own thread, collectives described on their kernels."""
    events = []
    launched = 0
    group = {"Collective name": "_allgather_base", "In msg nelems": 1024, "Out msg nelems": 8192, "Group size": 8, "dtype": "BFloat16",
             "Process Group Name": "0", "Process Group Description": "mesh_dp", "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]"}
    for step in range(3):
        t = 6322354292000.5 + 1000 * step
        c = 300 + 10 * step
        at = lambda us: round(t + us, 3)
        events += [
            event("user_annotation", f"ProfilerStep#{10 + step}", 75, 75, at(0), 1000.0),
            event("python_function", "nn.Module: Model_0", 75, 75, at(5), 200.0, **{"Python id": 1, "Python module id": 0}),
            event("python_function", "nn.Module: Linear_3", 75, 75, at(8), 60.0, **{"Python id": 2, "Python module id": 3}),
            event("python_function", "model.py(10): forward", 75, 75, at(9), 50.0, **{"Python id": 3}),
            event("cpu_op", "aten::linear", 75, 75, at(10), 50.25, **{
                "External id": c, "Record function id": 0, "Sequence number": 40 + step, "Fwd thread id": 0, "Ev Idx": 1,
                "Input Dims": [[16, 64], [32, 64], []], "Input type": ["c10::BFloat16", "c10::BFloat16", ""],
                "Input Strides": [[64, 1], [64, 1], []], "Concrete Inputs": ["", "", ""]}),
            event("cpu_op", "aten::mm", 75, 75, at(12), 40.0, **{
                "External id": c + 1, "Sequence number": 40 + step, "Fwd thread id": 0, "Ev Idx": 2,
                "Input Dims": [[16, 64], [64, 32]], "Input type": ["c10::BFloat16", "c10::BFloat16"],
                "Input Strides": [[64, 1], [1, 64]], "Concrete Inputs": ["", ""]}),
            event("cuda_driver", "cuLaunchKernelEx", 75, 75, at(20), 5.5, **{"External id": c + 1, "correlation": c + 1}),
            event("kernel", "nvjet_tst_256x128_64x4_1x2_h_bz_coopA_TNT", 0, 7, at(50), 100.125, **{
                "External id": c + 1, "queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": c + 1,
                "registers per thread": 168, "shared memory": 213196, "blocks per SM": 0.9, "warps per SM": 10.9,
                "grid": [8, 15, 1], "block": [384, 1, 1], "est. achieved occupancy %": 0}),
            event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 75, 155, at(100), 60.0, **{
                "External id": c + 2, "Sequence number": 40 + step, "Fwd thread id": 1, "Ev Idx": 3}),
            event("cpu_op", "aten::mm", 75, 155, at(110), 40.0, **{
                "External id": c + 3, "Input Dims": [[64, 16], [16, 32]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}),
            event("cuda_runtime", "cudaLaunchKernel", 75, 155, at(120), 5.0, **{"External id": c + 3, "correlation": c + 3}),
            event("kernel", "nvjet_tst_128x160_64x5_2x4_v_bz_NTT", 0, 7, at(200), 100.0, **{
                "External id": c + 3, "device": 0, "stream": 7, "correlation": c + 3, "grid": [4, 1, 1], "block": [384, 1, 1]}),
            event("cpu_op", "record_param_comms", 75, 155, at(160), 30.0, **{"External id": c + 4, **group}),
            event("cuda_runtime", "cudaLaunchKernelExC", 75, 155, at(170), 5.0, **{"External id": c + 4, "correlation": c + 4}),
            event("kernel", "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 0, 23, at(250), 150.0, **{
                "External id": c + 4, "device": 0, "stream": 23, "correlation": c + 4, "grid": [24, 1, 1], "block": [544, 1, 1], **group}),
            event("user_annotation", "Optimizer.step#AdamW.step", 75, 75, at(600), 100.0),
            event("cpu_op", "aten::_fused_adamw_", 75, 75, at(610), 80.0, **{
                "External id": c + 5, "Input Dims": [[[32, 64], [32]], [[32, 64], [32]]], "Input type": ["TensorList", "TensorList"]}),
            event("cuda_runtime", "cudaLaunchKernel", 75, 75, at(650), 5.0, **{"External id": c + 5, "correlation": c + 5}),
            event("kernel", "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>", 0, 7,
                  at(700), 50.0, **{"External id": c + 5, "device": 0, "stream": 7, "correlation": c + 5, "grid": [2, 1, 1], "block": [512, 1, 1]}),
            event("cuda_runtime", "cudaStreamSynchronize", 75, 75, at(720), 30.0, **{"correlation": c + 6}),
            event("gpu_user_annotation", f"ProfilerStep#{10 + step}", 0, 7, at(50), 700.0),
            event("overhead", "Command Buffer Full", -1, 0, at(760), 2.0),
        ]
        launched += 4
    # Launched before recording began.
    events.append(event("kernel", "triton_poi_fused_add_0", 0, 7, 6322354291990.5, 10.0,
                        device=0, stream=7, correlation=17, grid=[1, 1, 1], block=[128, 1, 1]))
    events.append({"ph": "M", "name": "thread_name", "pid": 75, "tid": 155, "ts": 0, "args": {"name": "pt_autograd_0"}})
    info = {"backend": "nccl", "rank": 3, "world_size": 8, "pg_count": 2, "nccl_version": "2.28.9",
            "pg_config": [{"pg_name": "0", "pg_desc": "mesh_dp", "backend_config": "cuda:nccl", "pg_size": 8, "ranks": list(range(8))}]}
    return {"schemaVersion": 1, "traceEvents": events, "record_shapes": 1, "with_stack": 1, "deviceProperties": H100, "cupti_version": 24,
            "cuda_runtime_version": 12060, "cuda_driver_version": 12080, "distributedInfo": info, "trace_id": "0", "my_job": "x",
            "displayTimeUnit": "ms", "baseTimeNanoseconds": 1759300074000000000}


# Nsight Systems.


def nsight():
    path = os.path.join(HERE, "nsight.sqlite")
    if os.path.exists(path):
        os.remove(path)
    base = sqlite3.connect(path)
    base.executescript("""
        pragma page_size = 512;
        create table StringIds (id integer primary key, value text);
        create table CUPTI_ACTIVITY_KIND_KERNEL (start integer, end integer, deviceId integer, streamId integer, correlationId integer,
            globalPid integer, demangledName integer, gridX integer, gridY integer, gridZ integer, blockX integer, blockY integer, blockZ integer);
        create table CUPTI_ACTIVITY_KIND_MEMCPY (start integer, end integer, deviceId integer, streamId integer, correlationId integer,
            globalPid integer, bytes integer, copyKind integer);
        create table CUPTI_ACTIVITY_KIND_RUNTIME (start integer, end integer, globalTid integer, correlationId integer, nameId integer);
        create table NVTX_EVENTS (start integer, end integer, eventType integer, text text, textId integer, globalTid integer, domainId integer);
        create table TARGET_INFO_GPU (id integer, name text, smCount integer, totalMemory integer);
        create table TARGET_INFO_CUDA_DEVICE (gpuId integer, cudaId integer, pid integer);
        create table TARGET_INFO_SESSION_START_TIME (utcEpochNs integer);
        create table META_DATA_EXPORT (name text, value text);
    """)
    names = ["nvjet_tst_128x160_64x5_2x4_v_bz_NTT", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
             "cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020", "cudaStreamSynchronize_v3020"]
    base.executemany("insert into StringIds values (?, ?)", list(enumerate(names)))
    base.execute("insert into TARGET_INFO_GPU values (0, 'NVIDIA H100 80GB HBM3', 132, 85017493504)")
    base.execute("insert into TARGET_INFO_GPU values (1, 'Intel(R) Iris(R) Xe Graphics', 0, 0)")
    base.execute("insert into TARGET_INFO_SESSION_START_TIME values (1779630014975716426)")
    base.execute("insert into META_DATA_EXPORT values ('EXPORT_PRODUCT_VERSION', '2026.2.1')")
    # Two processes whose calls have the same numbers.
    for rank in range(2):
        process = 1 << 48 | (111 + rank) << 24
        thread = process | (111 + rank)
        base.execute("insert into TARGET_INFO_CUDA_DEVICE values (0, ?, ?)", (rank, 111 + rank))
        for step in range(2):
            t = 1000000 + 1000 * step + rank
            c = 10 * step
            base.execute("insert into NVTX_EVENTS values (?, ?, 59, ?, null, ?, 0)", (t, t + 1000, f"step {step}", thread))
            text = f"aten::mm, seq = {step}, op_id = {50 + step}, sizes = [[16, 64], [64, 32]]"
            base.execute("insert into NVTX_EVENTS values (?, ?, 59, ?, null, ?, 0)", (t + 10, t + 60, text, thread))
            calls = [(t + 20, t + 25, thread, c + 1, 2), (t + 70, t + 75, thread, c + 2, 2), (t + 80, t + 85, thread, c + 3, 3),
                     (t + 90, t + 100, thread, c + 4, 4)]
            base.executemany("insert into CUPTI_ACTIVITY_KIND_RUNTIME values (?, ?, ?, ?, ?)", calls)
            kernels = [(t + 100, t + 300, rank, 7, c + 1, process, 0, 8, 1, 1, 384, 1, 1),
                       (t + 250, t + 400 - rank, rank, 20, c + 2, process, 1, 24, 1, 1, 512, 1, 1)]
            base.executemany("insert into CUPTI_ACTIVITY_KIND_KERNEL values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", kernels)
            base.execute("insert into CUPTI_ACTIVITY_KIND_MEMCPY values (?, ?, ?, 7, ?, ?, 4096, 1)", (t + 500, t + 550, rank, c + 3, process))
    base.commit()
    base.execute("vacuum")
    base.close()


# XLA.


def varint(number):
    number &= (1 << 64) - 1
    out = bytearray()
    while True:
        byte = number & 0x7F
        number >>= 7
        out.append(byte | (0x80 if number else 0))
        if not number:
            return bytes(out)


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, str):
        value = value.encode()
    return varint(number << 3 | 2) + varint(len(value)) + value


class Plane:
    """A plane that numbers its kinds of events and of values as they come."""

    def __init__(self, name, **stats):
        self.name, self.kinds, self.stat_kinds, self.lines = name, {}, {}, []
        self.stats = [self.stat(key, value) for key, value in stats.items()]

    def stat(self, name, value):
        key = self.stat_kinds.setdefault(name, len(self.stat_kinds) + 1)
        if isinstance(value, str):
            return field(1, key) + field(5, value)
        if isinstance(value, float):
            return field(1, key) + varint(2 << 3 | 1) + struct.pack("<d", value)
        return field(1, key) + field(3, value)

    def line(self, number, name, start_ns, events):
        out = field(1, number) + field(2, name) + field(3, start_ns)
        for kind, offset_ps, duration_ps, stats, of_kind in events:
            key = self.kinds.setdefault(kind, (len(self.kinds) + 1, of_kind))[0]
            body = field(1, key) + field(2, offset_ps) + field(3, duration_ps)
            body += b"".join(field(4, self.stat(name, value)) for name, value in stats.items())
            out += field(4, body)
        self.lines.append(out)

    def bytes(self):
        out = field(2, self.name)
        out += b"".join(field(3, line) for line in self.lines)
        for name, (key, stats) in self.kinds.items():
            body = field(1, key) + field(2, name) + b"".join(field(5, self.stat(of, value)) for of, value in stats.items())
            out += field(4, field(1, key) + field(2, body))
        for name, key in self.stat_kinds.items():
            out += field(5, field(1, key) + field(2, field(1, key) + field(2, name)))
        return field(1, out + b"".join(field(6, stat) for stat in self.stats))


def xplane_gpu():
    host, device = Plane("/host:CPU"), Plane("/device:GPU:0", device_vendor="Nvidia", core_count=132, memory_size=85017493504)
    calls, marks, kernels, comms = [], [], [], []
    of = {"hlo_module": "jit_train_step"}
    for step in range(2):
        t = 1000000 * step
        marks.append(("train", t, 900000, {"step_num": step + 5}, {}))
        gemm = {"correlation_id": 10 * step + 1, "hlo_op": "cublas-gemm.3", "name": "jit(train_step)/jvp(Model)/dot_general", **of}
        reduce = {"correlation_id": 10 * step + 2, "hlo_op": "all-reduce-start.2", "name": "jit(train_step)/psum", **of}
        calls += [("cuLaunchKernel", t + 10000, 5000, gemm, {}), ("cuLaunchKernel", t + 30000, 5000, reduce, {})]
        details = {"kernel_details": "regs:168 static_shared:0 dynamic_shared:0 grid:8,15,1 block:384,1,1 occ_pct:12.5"}
        kernels.append(("nvjet_tst_256x128_64x4_1x2_h_bz_coopA_TNT", t + 100000, 300000, {**gemm, **details}, {}))
        comms.append(("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", t + 300000, 200000, reduce, {}))
    host.line(1, "python", 500, marks)
    host.line(2, "py_xla_execute/2", 500, calls)
    device.line(7, "Stream #7(Compute)", 500, kernels)
    device.line(9, "Stream #9", 500, comms)
    device.line(20, "XLA Modules", 500, [("jit_train_step", 100000, 400000, {}, {})])
    versions = Plane("/host:metadata", jax_version="0.10.2", jaxlib_version="0.10.2")
    return versions.bytes() + device.bytes() + host.bytes() + Plane("Task Environment", profile_start_time=1795722528698757524).bytes()


def xplane_tpu():
    out = b""
    dot = "%dot.3 = bf16[16,32]{1,0:T(8,128)} convolution(bf16[16,64]{1,0} %a, bf16[64,32]{1,0} %b), dim_labels=bf_io->bf"
    gather = "%all-gather.1 = bf16[64,32]{1,0} all-gather(bf16[16,32]{1,0} %dot.3), replica_groups=[2,4]<=[8], dimensions={0}"
    for core in range(2):
        plane = Plane(f"/device:TPU:{core}", device_type_string="TPU v6 Lite", peak_teraflops_per_second=918.0)
        modules, ops, flying = [], [], []
        for step in range(3):
            t = 1000000 * step + 1000 * core
            modules.append(("jit_train_step(12190760917235803885)", t, 900000, {"run_id": step}, {}))
            of = {"hlo_category": "convolution", "flops": 65536, "bytes_accessed": 7168, "tf_op": "jit(train_step)/jvp(Model)/dot_general:"}
            ops += [("%while.1 = (s32[]) while((s32[]) %t), condition=%c, body=%b", t, 400000, {}, {"hlo_category": "while"}),
                    (dot, t, 300000, {}, of), (dot, t + 300000, 100000, {}, of),
                    (gather, t + 400000, 200000, {}, {"hlo_category": "all-gather", "tf_op": "jit(train_step)/all_gather:"})]
            flying.append(("%copy-start = (f32[8]{0}, f32[8]{0}, u32[]) copy-start(f32[8]{0} %p)", t + 700000, 100000, {"hlo_op": "copy-start"},
                           {"hlo_category": "copy-start"}))
        plane.line(2, "XLA Modules", 0, modules)
        plane.line(3, "XLA Ops", 0, ops)
        plane.line(4, "Async XLA Ops", 0, flying)
        out += plane.bytes()
    return out


def viewer():
    """What the profiler writes beside an xplane.pb: names first, an empty event at the end."""
    named = lambda pid, tid, what, name: {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {"name": name}}
    events = [named(701, 0, "process_name", "/host:CPU"), named(701, 1, "thread_name", "python"), named(1, 0, "process_name", "/device:GPU:0"),
              named(1, 7, "thread_name", "Stream #7(Compute)"), named(1, 20, "thread_name", "XLA Modules - from #7")]
    for step in range(2):
        t = 10.5 + step
        args = {"correlation_id": str(step + 1), "hlo_op": "cublas-gemm.3", "hlo_module": "jit_train_step", "tf_op": "jit(train_step)/dot_general"}
        events += [
            {"ph": "X", "pid": 701, "tid": 1, "ts": t, "dur": 0.9, "name": "train", "args": {"step_num": str(step + 5)}},
            {"ph": "X", "pid": 701, "tid": 1, "ts": t + 0.1, "dur": 0.05, "name": "$profiler.py:1 f"},
            {"ph": "X", "pid": 701, "tid": 1, "ts": t + 0.2, "dur": 0.1, "name": "cuLaunchKernel", "args": args},
            {"ph": "X", "pid": 1, "tid": 7, "ts": t + 0.4, "dur": 0.300125, "name": "nvjet_tst_256x128", "args": args},
            {"ph": "X", "pid": 1, "tid": 20, "ts": t + 0.4, "dur": 0.3, "name": "jit_train_step"},
        ]
    return {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, "traceEvents": events + [{}]}


def main():
    os.makedirs(HERE, exist_ok=True)
    pretty = lambda trace: json.dumps(trace, indent=1).encode()
    flat = lambda trace: json.dumps(trace, separators=(",", ":")).encode()
    write("kineto-2021.json", pretty(kineto_2021()))
    write("kineto-2023.json", flat(kineto_2023()))
    write("kineto-2025.json", flat(kineto_2025()))
    write("kineto-2025-packed.json.gz", flat(kineto_2025()))
    write("kineto-events-alone.json", flat(kineto_2023()["traceEvents"]))
    nsight()
    write("gpu.xplane.pb", xplane_gpu())
    write("tpu.xplane.pb", xplane_tpu())
    write("viewer.trace.json.gz", flat(viewer()))


main()
