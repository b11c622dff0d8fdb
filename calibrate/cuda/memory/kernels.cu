// Memory-bound kernels of training. No headers: NVRTC needs none then. A pointwise kernel's unit is eight elements; others
// take one block a row, or a chunk. Sizes are 64-bit.

typedef unsigned int u32;
typedef unsigned long long u64;

#ifndef WIDTH
#define WIDTH 4096
#endif
#ifndef VOCABULARY
#define VOCABULARY 128256
#endif

// Eight bf16 numbers as fp32 and back.
struct Eight { float v[8]; };

__device__ __forceinline__ Eight widen(uint4 raw) {
    u32 w[4] = {raw.x, raw.y, raw.z, raw.w};
    Eight out;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        out.v[2 * i] = __uint_as_float(w[i] << 16);
        out.v[2 * i + 1] = __uint_as_float(w[i] & 0xFFFF0000u);
    }
    return out;
}

__device__ __forceinline__ uint4 narrow(const Eight& in) {
    u32 w[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w[i]) : "f"(in.v[2 * i + 1]), "f"(in.v[2 * i]));
    return make_uint4(w[0], w[1], w[2], w[3]);
}

#define EACH for (int i = 0; i < 8; i++)
#define POINTWISE                                                  \
    u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;           \
    if (at >= count) return;

extern "C" __global__ void copy(const uint4* x, uint4* y, u64 count) {
    POINTWISE
    y[at] = x[at];
}

extern "C" __global__ void fill(uint4* y, u64 count) {
    POINTWISE
    y[at] = make_uint4(0, 0, 0, 0);
}

extern "C" __global__ void scale(const uint4* x, uint4* y, u64 count) {
    POINTWISE
    Eight a = widen(x[at]);
    EACH a.v[i] *= 0.5f;
    y[at] = narrow(a);
}

extern "C" __global__ void add(const uint4* x, const uint4* z, uint4* y, u64 count) {
    POINTWISE
    Eight a = widen(x[at]), b = widen(z[at]);
    EACH a.v[i] += b.v[i];
    y[at] = narrow(a);
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

extern "C" __global__ void swiglu(const uint4* gate, const uint4* up, uint4* y, u64 count) {
    POINTWISE
    Eight g = widen(gate[at]), u = widen(up[at]);
    EACH g.v[i] = g.v[i] * sigmoid(g.v[i]) * u.v[i];
    y[at] = narrow(g);
}

extern "C" __global__ void swiglu_backward(const uint4* dy, const uint4* gate, const uint4* up, uint4* dgate, uint4* dup,
                                           u64 count) {
    POINTWISE
    Eight d = widen(dy[at]), g = widen(gate[at]), u = widen(up[at]), a, b;
    EACH {
        float s = sigmoid(g.v[i]);
        a.v[i] = d.v[i] * u.v[i] * s * (1.0f + g.v[i] * (1.0f - s));
        b.v[i] = d.v[i] * g.v[i] * s;
    }
    dgate[at] = narrow(a);
    dup[at] = narrow(b);
}

extern "C" __global__ void cast_up(const uint4* x, float4* y, u64 count) {
    POINTWISE
    Eight a = widen(x[at]);
    y[2 * at] = make_float4(a.v[0], a.v[1], a.v[2], a.v[3]);
    y[2 * at + 1] = make_float4(a.v[4], a.v[5], a.v[6], a.v[7]);
}

extern "C" __global__ void cast_down(const float4* x, uint4* y, u64 count) {
    POINTWISE
    float4 a = x[2 * at], b = x[2 * at + 1];
    Eight e = {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
    y[at] = narrow(e);
}

// A rotation of pairs, as a multiplication of complex numbers: 8-byte loads, as PyTorch's.
extern "C" __global__ void rotary(const float2* x, float2* y, u64 count) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u64 pair = (u64)blockIdx.x * blockDim.x * 4 + i * blockDim.x + threadIdx.x;
        if (pair >= 4 * count) return;
        float2 a = x[pair];
        y[pair] = make_float2(a.x * 0.8f - a.y * 0.6f, a.x * 0.6f + a.y * 0.8f);
    }
}

// The sum over a block.
__device__ __forceinline__ float total(float v) {
    __shared__ float parts[32];
    for (int step = 16; step; step >>= 1) v += __shfl_xor_sync(~0u, v, step);
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
    __syncthreads();
    v = threadIdx.x % 32 < blockDim.x / 32 ? parts[threadIdx.x % 32] : 0.0f;
    for (int step = 16; step; step >>= 1) v += __shfl_xor_sync(~0u, v, step);
    return v;
}

// The largest over a block.
__device__ __forceinline__ float highest(float v) {
    __shared__ float parts[32];
    for (int step = 16; step; step >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, step));
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
    __syncthreads();
    v = threadIdx.x % 32 < blockDim.x / 32 ? parts[threadIdx.x % 32] : -3.4e38f;
    for (int step = 16; step; step >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, step));
    return v;
}

// Vectors of eight that a thread of 256 has of a row.
#define HELD (WIDTH / 8 / 256)

extern "C" __global__ void rms_norm(const uint4* x, uint4* y, float* scales, const uint4* weight, u64 count) {
    u64 row = blockIdx.x;
    const uint4* from = x + row * (WIDTH / 8);
    Eight held[HELD];
    float sum = 0.0f;
#pragma unroll
    for (int h = 0; h < HELD; h++) {
        held[h] = widen(from[h * 256 + threadIdx.x]);
        EACH sum += held[h].v[i] * held[h].v[i];
    }
    float scale = rsqrtf(total(sum) / WIDTH + 1e-5f);
    if (threadIdx.x == 0) scales[row] = scale;
#pragma unroll
    for (int h = 0; h < HELD; h++) {
        Eight w = widen(weight[h * 256 + threadIdx.x]);
        EACH held[h].v[i] *= scale * w.v[i];
        y[row * (WIDTH / 8) + h * 256 + threadIdx.x] = narrow(held[h]);
    }
}

// Blocks go over rows and keep their part of the weight's gradient.
extern "C" __global__ void rms_norm_backward(const uint4* dy, const uint4* x, const float* scales, uint4* dx,
                                             const uint4* weight, float* partial, u64 count) {
    Eight sums[HELD] = {};
    for (u64 row = blockIdx.x; row < count; row += gridDim.x) {
        float scale = scales[row], dot = 0.0f;
        Eight g[HELD], n[HELD];
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            u64 at = row * (WIDTH / 8) + h * 256 + threadIdx.x;
            Eight d = widen(dy[at]), w = widen(weight[h * 256 + threadIdx.x]);
            n[h] = widen(x[at]);
            EACH {
                n[h].v[i] *= scale;
                sums[h].v[i] += d.v[i] * n[h].v[i];
                g[h].v[i] = d.v[i] * w.v[i];
                dot += g[h].v[i] * n[h].v[i];
            }
        }
        dot = total(dot) / WIDTH;
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            EACH g[h].v[i] = scale * (g[h].v[i] - n[h].v[i] * dot);
            dx[row * (WIDTH / 8) + h * 256 + threadIdx.x] = narrow(g[h]);
        }
    }
    float* out = partial + (u64)blockIdx.x * WIDTH;
#pragma unroll
    for (int h = 0; h < HELD; h++) EACH out[(h * 256 + threadIdx.x) * 8 + i] = sums[h].v[i];
}

extern "C" __global__ void log_softmax(const float4* x, float4* y, u64 count) {
    const float4* from = x + (u64)blockIdx.x * (VOCABULARY / 4);
    float4* to = y + (u64)blockIdx.x * (VOCABULARY / 4);
    float most = -3.4e38f, sum = 0.0f;
    for (u32 at = threadIdx.x; at < VOCABULARY / 4; at += blockDim.x) {
        float4 v = from[at];
        most = fmaxf(most, fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)));
    }
    most = highest(most);
    for (u32 at = threadIdx.x; at < VOCABULARY / 4; at += blockDim.x) {
        float4 v = from[at];
        sum += __expf(v.x - most) + __expf(v.y - most) + __expf(v.z - most) + __expf(v.w - most);
    }
    float shift = most + __logf(total(sum));
    for (u32 at = threadIdx.x; at < VOCABULARY / 4; at += blockDim.x) {
        float4 v = from[at];
        to[at] = make_float4(v.x - shift, v.y - shift, v.z - shift, v.w - shift);
    }
}

extern "C" __global__ void log_softmax_backward(const float4* dy, const float4* y, float4* dx, u64 count) {
    u64 base = (u64)blockIdx.x * (VOCABULARY / 4);
    float sum = 0.0f;
    for (u32 at = threadIdx.x; at < VOCABULARY / 4; at += blockDim.x) {
        float4 d = dy[base + at];
        sum += d.x + d.y + d.z + d.w;
    }
    sum = total(sum);
    for (u32 at = threadIdx.x; at < VOCABULARY / 4; at += blockDim.x) {
        float4 d = dy[base + at], v = y[base + at];
        dx[base + at] = make_float4(d.x - __expf(v.x) * sum, d.y - __expf(v.y) * sum, d.z - __expf(v.z) * sum,
                                    d.w - __expf(v.w) * sum);
    }
}

// Loss and gradient at once, the gradient in the logits' place, as fused losses do.
extern "C" __global__ void cross_entropy(uint4* x, const u32* labels, float* losses, u64 count) {
    uint4* row = x + (u64)blockIdx.x * (VOCABULARY / 8);
    float most = -3.4e38f, sum = 0.0f;
    for (u32 at = threadIdx.x; at < VOCABULARY / 8; at += blockDim.x) {
        Eight a = widen(row[at]);
        float before = most;
        EACH most = fmaxf(most, a.v[i]);
        sum *= __expf(before - most);
        EACH sum += __expf(a.v[i] - most);
    }
    float top = highest(most);
    sum = total(sum * __expf(most - top));
    u32 label = labels[blockIdx.x];
    if (threadIdx.x == 0) {
        Eight a = widen(row[label / 8]);
        losses[blockIdx.x] = __logf(sum) + top - a.v[label % 8];
    }
    __syncthreads();
    float inverse = 1.0f / sum;
    for (u32 at = threadIdx.x; at < VOCABULARY / 8; at += blockDim.x) {
        Eight a = widen(row[at]);
        EACH a.v[i] = __expf(a.v[i] - top) * inverse - (at * 8 + i == label ? 1.0f : 0.0f);
        row[at] = narrow(a);
    }
}

extern "C" __global__ void embedding(const u32* tokens, uint4* y, const uint4* table, u64 count) {
    u64 from = (u64)tokens[blockIdx.x] * (WIDTH / 8), to = (u64)blockIdx.x * (WIDTH / 8);
    for (u32 at = threadIdx.x; at < WIDTH / 8; at += blockDim.x) y[to + at] = table[from + at];
}

extern "C" __global__ void embedding_backward(const u32* tokens, const uint4* dy, float* table, u64 count) {
    float* to = table + (u64)tokens[blockIdx.x] * WIDTH;
    for (u32 at = threadIdx.x; at < WIDTH / 8; at += blockDim.x) {
        Eight a = widen(dy[(u64)blockIdx.x * (WIDTH / 8) + at]);
        EACH atomicAdd(to + at * 8 + i, a.v[i]);
    }
}

#define CHUNK 65536

extern "C" __global__ void adamw(float4* p, const float4* g, float4* m, float4* v, u64 count) {
    u64 base = (u64)blockIdx.x * (CHUNK / 4);
    for (u32 at = threadIdx.x; at < CHUNK / 4; at += blockDim.x) {
        float4 a = p[base + at], b = g[base + at], c = m[base + at], d = v[base + at];
        float* ps = &a.x; float* gs = &b.x; float* ms = &c.x; float* vs = &d.x;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            ms[i] += 0.1f * (gs[i] - ms[i]);
            vs[i] = 0.95f * vs[i] + 0.05f * gs[i] * gs[i];
            ps[i] -= 3e-4f * (0.1f * ps[i] + ms[i] / (sqrtf(vs[i]) + 1e-8f));
        }
        p[base + at] = a;
        m[base + at] = c;
        v[base + at] = d;
    }
}

extern "C" __global__ void scale_foreach(float4* x, u64 count) {
    u64 base = (u64)blockIdx.x * (CHUNK / 4);
    for (u32 at = threadIdx.x; at < CHUNK / 4; at += blockDim.x) {
        float4 a = x[base + at];
        x[base + at] = make_float4(a.x * 0.99f, a.y * 0.99f, a.z * 0.99f, a.w * 0.99f);
    }
}
