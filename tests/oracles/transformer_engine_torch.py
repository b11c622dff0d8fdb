"""Stand-in for Transformer Engine's C++ extension (2.9): its functions allocate what the real ones do and compute nothing.

`load(folder)` makes Transformer Engine's own Python, from a checkout in `folder`, importable on it. Workspaces that cuDNN and the
norms' kernels ask for are left out.
"""
import enum, importlib, importlib.metadata, math, os, re, sys, types

import torch

OWN = sys.modules[__name__]


def empty(shape, dtype):
    return torch.empty(shape, dtype=dtype, device="cuda")


def layernorm_fwd(x, weight, bias, eps, out, quantizer, dtype, margin, centered):
    rows = x.numel() // x.shape[-1]
    mean, root = empty([rows], torch.float32), empty([rows], torch.float32)
    return empty(x.shape, x.dtype) if out is None else out, mean, root


def rmsnorm_fwd(x, weight, eps, out, quantizer, dtype, margin, centered):
    root = empty([x.numel() // x.shape[-1]], torch.float32)
    if quantizer is not None:
        out = create(quantizer, x.shape, x.dtype) if out is None else out
        if not delayed(quantizer):
            # Scales of the moment: the norm's result is a tensor of its own until it is quantised.
            wide = empty(x.shape, x.dtype)
            reduce_maximum(quantizer)
        return out, None, root
    return empty(x.shape, x.dtype) if out is None else out, None, root


def delayed(quantizer):
    return type(quantizer).__name__ == "Float8Quantizer"


def blockwise(quantizer):
    return type(quantizer).__name__ == "Float8BlockQuantizer"


def reduce_maximum(quantizer):
    """Ranks that hold parts of a tensor share its scale of the moment."""
    if getattr(quantizer, "with_amax_reduction", False):
        torch.distributed.all_reduce(quantizer.amax, torch.distributed.ReduceOp.MAX, quantizer.amax_reduction_group)


def create(quantizer, shape, dtype):
    """An fp8 tensor (`csrc/quantizer.cpp`, `create_tensor`): as it lies, transposed, or both, with one scale or one a block."""
    from transformer_engine.pytorch.tensor.float8_blockwise_tensor import Float8BlockwiseQTensor
    from transformer_engine.pytorch.tensor.float8_tensor import Float8Tensor
    from transformer_engine.pytorch.tensor.storage.float8_blockwise_tensor_storage import Float8BlockwiseQTensorStorage
    from transformer_engine.pytorch.tensor.storage.float8_tensor_storage import Float8TensorStorage

    shape = list(shape)
    if blockwise(quantizer):
        data = scales = turned = turned_scales = None
        if quantizer.rowwise_usage:
            data, scales = empty(shape, torch.uint8), empty(quantizer.get_scale_shape(shape, False), torch.float32)
        if quantizer.columnwise_usage:
            turned = empty(quantizer.get_columnwise_shape(shape), torch.uint8)
            turned_scales = empty(quantizer.get_scale_shape(shape, True), torch.float32)
        formats = OWN.Float8BlockScaleTensorFormat
        parts = dict(
            rowwise_data=data, rowwise_scale_inv=scales, columnwise_data=turned, columnwise_scale_inv=turned_scales, fp8_dtype=quantizer.dtype,
            quantizer=quantizer, is_2D_scaled=quantizer.block_scaling_dim == 2,
            data_format=formats.COMPACT if quantizer.all_gather_usage else formats.GEMM_READY,
        )
        if quantizer.internal:
            return Float8BlockwiseQTensorStorage(**parts)
        return Float8BlockwiseQTensor(shape=shape, dtype=dtype, **parts)
    scale = empty([1], torch.float32) if delayed(quantizer) else None
    data = empty(shape, torch.uint8) if quantizer.rowwise_usage else None
    turned = empty([shape[-1], *shape[:-1]], torch.uint8) if quantizer.columnwise_usage else None
    scale = empty([1], torch.float32) if scale is None else scale
    parts = dict(data=data, fp8_scale_inv=scale, fp8_dtype=quantizer.dtype, data_transpose=turned, quantizer=quantizer)
    return Float8TensorStorage(**parts) if quantizer.internal else Float8Tensor(shape=shape, dtype=dtype, **parts)


def quantize(tensor, quantizer, output=None, noop=None):
    tensor = tensor.contiguous()
    if output is None:
        output = create(quantizer, tensor.shape, tensor.dtype)
    elif not blockwise(quantizer):
        if output._data is None and quantizer.rowwise_usage:
            output._data = empty(tensor.shape, torch.uint8)
        if output._transpose is None and quantizer.columnwise_usage:
            output._transpose = empty([tensor.shape[-1], *tensor.shape[:-1]], torch.uint8)
    reduce_maximum(quantizer)
    return output


def split_quantize(tensor, rows, quantizers):
    tensor = tensor.contiguous()
    shapes = [[count, *tensor.shape[1:]] for count in rows]
    if blockwise(quantizers[0]):
        return bulk(shapes, quantizers)
    return [create(quantizer, shape, tensor.dtype) for shape, quantizer in zip(shapes, quantizers)]


def bulk(shapes, quantizers):
    """All parts in one buffer each way, numbers first (`csrc/extensions/cast.cpp`, `bulk_allocate_fp8_blockwise_tensors`)."""
    from transformer_engine.pytorch.tensor.storage.float8_blockwise_tensor_storage import Float8BlockwiseQTensorStorage

    first = quantizers[0]

    def buffer(lie, columnwise):
        end, parts = 0, []
        for shape in shapes:
            end = -(-end // 256) * 256
            lies = lie(shape)
            parts.append((end, lies))
            end += math.prod(lies)
        scales = []
        for quantizer, shape in zip(quantizers, shapes):
            end = -(-end // 16) * 16
            lies = quantizer.get_scale_shape(shape, columnwise)
            scales.append((end, lies))
            end += 4 * math.prod(lies)
        whole = empty([end], torch.uint8)

        def cut(at, lies, dtype):
            """On the buffer's memory, which nobody else names: not a view of it."""
            return empty([0], dtype).set_(whole.untyped_storage(), at // dtype.itemsize, list(lies))

        return [(cut(*part, torch.uint8), cut(*scale, torch.float32)) for part, scale in zip(parts, scales)]

    nothing = [(None, None)] * len(shapes)
    rows = buffer(list, False) if first.rowwise_usage else nothing
    columns = buffer(lambda shape: [shape[-1], *shape[:-1]], True) if first.columnwise_usage else nothing
    return [
        Float8BlockwiseQTensorStorage(
            *row, *column, quantizer.dtype, quantizer, first.block_scaling_dim == 2, OWN.Float8BlockScaleTensorFormat.GEMM_READY
        )
        for row, column, quantizer in zip(rows, columns, quantizers)
    ]


def fp8_transpose(data, dtype, out=None):
    return empty([data.shape[-1], *data.shape[:-1]], torch.uint8) if out is None else out


def fused_multi_row_padding(inputs, outputs, rows, filled):
    pass


fused_multi_row_unpadding = fused_multi_row_padding


def lies(tensor):
    """The shape of a tensor of which only the transposed copy may be there."""
    if hasattr(tensor, "_rowwise_data"):
        if tensor._rowwise_data is not None:
            return tensor._rowwise_data.shape
        turned = tensor._columnwise_data.shape
        return torch.Size([*turned[1:], turned[0]])
    if isinstance(tensor, torch.Tensor):
        return tensor.shape
    if tensor._data is not None:
        return tensor._data.shape
    turned = tensor._transpose.shape
    return torch.Size([*turned[1:], turned[0]])


def layernorm_bwd(gradient, x, mean, root, weight, margin, centered):
    return torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)


def rmsnorm_bwd(gradient, x, root, weight, margin, centered):
    return torch.empty_like(x), torch.empty_like(weight)


def generic_gemm(a, transposes_a, b, transposes_b, out, quantizer, dtype, bias, bias_dtype, gelu, gelu_in, grad, *rest, **more):
    assert quantizer is None and more.get("comm_overlap") is None
    if out is None:
        first, second = lies(a), lies(b)
        columns = first[0] if transposes_a else first[-1]
        result = {"kFloat32": torch.float32, "kBFloat16": torch.bfloat16}[dtype.name] if "float8" in type(a).__name__.lower() else a.dtype
        out = empty([second[-1], first[-1]] if transposes_b else [*second[:-1], columns], result)
    return out, empty([b.shape[-1]], bias.dtype) if grad and bias is not None else None, None, None


def get_fused_attn_backend(*shape):
    return OWN.NVTE_Fused_Attn_Backend.NVTE_F16_arbitrary_seqlen


def fused_attn_fwd(*a):
    q, v = a[13], a[15]
    out, random = empty([*q.shape[:-1], v.shape[-1]], q.dtype), empty([2], torch.int64)
    return [out, empty([q.shape[1], q.shape[2], q.shape[0], 1], torch.float32), random]


def fused_attn_bwd(*a):
    layout, (q, k, v) = a[5].name, a[13:16]
    if layout == "NVTE_SBH3D":
        joint = empty([*q.shape[:-1], 3, q.shape[-1]], q.dtype)
        return *(joint[..., at, :] for at in range(3)), None, None
    return *(empty(x.shape, x.dtype) for x in (q, k, v)), None, None


def fused_rope_forward(x, *rest):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


fused_rope_backward = fused_rope_forward
get_cublasLt_version = lambda: 130000
get_cudnn_version = lambda: 91400
get_num_cublas_streams = lambda: 4
device_supports_multicast = lambda *a: True
multi_tensor_adam = multi_tensor_scale = lambda *a, **more: None
fused_amax_and_scale_update_after_reduction = lambda *a: None


def bgrad_quantize(gradient, quantizer):
    """The sum over rows, and the quantised gradient."""
    return empty([gradient.shape[-1]], gradient.dtype), quantize(gradient, quantizer)


def multi_tensor_l2norm(*a):
    return empty([1], torch.float32), empty([1], torch.float32)


def __getattr__(name):
    """A class that is only named, or a function that nobody is expected to call."""
    if name.startswith("__"):
        raise AttributeError(name)
    if name[0].isupper():
        made = type(name, (), {"__init__": lambda self, *a, **more: None})
    else:
        def made(*a, **more):
            raise NotImplementedError(f"transformer_engine_torch.{name}")
    setattr(OWN, name, made)
    return made


def enums(folder):
    """The enumerations, as the extension's sources name their values."""
    files = ["common/util/pybind_helper.h", "pytorch/csrc/extensions/pybind.cpp"]
    text = "".join(open(f"{folder}/transformer_engine/{file}").read().replace("\\\n", "") for file in files)
    for part in re.split(r"py(?:bind11)?::enum_<", text)[1:]:
        name = re.search(r'\(\s*m,\s*"(\w+)"', part)
        if name:
            values = re.findall(r'\.value\(\s*"(\w+)"', part)
            setattr(OWN, name.group(1), enum.IntEnum(name.group(1), [(value, at) for at, value in enumerate(values)]))


def load(folder):
    enums(folder)
    os.environ["NVTE_PROJECT_BUILDING"] = "1"
    version = importlib.metadata.version
    importlib.metadata.version = lambda name: "2.9.0" if name.startswith("transformer") else version(name)
    package = types.ModuleType("transformer_engine")
    package.__path__, package.__version__ = [f"{folder}/transformer_engine"], "2.9.0"
    sys.modules["transformer_engine"] = package
    importlib.import_module("transformer_engine.common").load_framework_extension = lambda framework: None
    importlib.import_module("transformer_engine.pytorch")
