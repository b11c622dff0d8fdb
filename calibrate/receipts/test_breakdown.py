"""Kernels are found by part of the step and operator: `python -m unittest discover calibrate/receipts` (needs PyTorch)."""

import unittest

from breakdown import breakdown

LOOP, BACKWARD = 1, 2  # threads


def host(name, thread, start, stop, kind="cpu_op"):
    return {"ph": "X", "cat": kind, "name": name, "tid": thread, "ts": start, "dur": stop - start}


def launched(number, thread, at, name, start, stop):
    """A launch and its kernel."""
    launch = host("cudaLaunchKernel", thread, at, at + 0.1, "cuda_runtime") | {"args": {"correlation": number}}
    kernel = {"ph": "X", "cat": "kernel", "name": name, "tid": 7, "ts": start, "dur": stop - start}
    return [launch, kernel | {"args": {"correlation": number}}]


TRACE = {
    "traceEvents": [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
        host("windtunnel.forward", LOOP, 0, 10, "user_annotation"),
        host("aten::linear", LOOP, 1, 4),
        host("aten::mm", LOOP, 2, 3),
        *launched(1, LOOP, 2.5, "gemm", 100, 130),
        host("windtunnel.backward", LOOP, 10, 40, "user_annotation"),
        # Another thread runs backward, and in it the recompute.
        host("windtunnel.recompute", BACKWARD, 12, 18, "user_annotation"),
        host("aten::silu", BACKWARD, 13, 14),
        *launched(2, BACKWARD, 13.5, "silu", 130, 140),
        host("aten::silu_backward", BACKWARD, 20, 22),
        *launched(3, BACKWARD, 21, "silu_backward", 150, 160),
        host("aten::_scaled_dot_product_flash_attention_backward", BACKWARD, 23, 26),
        host("aten::_flash_attention_backward", BACKWARD, 24, 25),
        *launched(4, BACKWARD, 24.5, "flash_bwd", 155, 170),
        host("windtunnel.optimizer", LOOP, 40, 50, "user_annotation"),
        host("Optimizer.step#AdamW.step", LOOP, 41, 49, "user_annotation"),
        host("aten::_fused_adamw_", LOOP, 42, 44),
        *launched(5, LOOP, 43, "adam", 170, 180),
        # A Triton kernel launched by the driver's interface, outside any operator.
        *launched(6, LOOP, 5, "triton_poi_fused_0", 180, 200),
    ]
}


class Breakdown(unittest.TestCase):
    def test_a_kernel_belongs_to_the_part_and_operator_around_its_launch(self):
        rows = {(row["part"], row["name"]): row["count"] for row in breakdown(TRACE)["parts"]}
        self.assertEqual(
            rows,
            {
                ("forward", "aten.mm"): 1,
                ("recompute", "aten.silu"): 1,
                ("backward", "aten.silu_backward"): 1,
                ("backward", "aten._scaled_dot_product_flash_attention_backward"): 1,
                ("optimizer", "aten._fused_adamw_"): 1,
                ("forward", "triton_poi_fused_0"): 1,
            },
        )

    def test_families_are_those_of_profiles(self):
        rows = {row["family"]: round(row["busy_s"] * 1e6) for row in breakdown(TRACE)["families"]}
        self.assertEqual(rows, {"matmul": 30, "memory-bound": 40, "attention backward": 15, "optimizer": 10})

    def test_time_in_which_two_kernels_ran_counts_once(self):
        table = breakdown(TRACE)
        self.assertEqual((table["launches"], round(table["busy_s"] * 1e6)), (6, 90))
        self.assertAlmostEqual(table["idle_share"], 0.1)


if __name__ == "__main__":
    unittest.main()
