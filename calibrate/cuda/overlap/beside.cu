// What runs beside a measured kernel: one block for each processor that it is to hold.

typedef unsigned long long u64;

// Words shared with the host.
#define STOP 0
#define BEGUN 1
#define BYTES 2
#define NANOS 3

__device__ __forceinline__ u64 now() {
    u64 time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

__device__ __forceinline__ bool over(volatile u64* words, u64 began, u64 limit) {
    return words[STOP] != 0 || now() - began > limit;
}

// Holds processors and does nothing.
extern "C" __global__ void spin(u64* words, u64 limit, const uint4* from, uint4* to, u64 count, u64 pace) {
    if (threadIdx.x != 0) return;
    u64 began = now();
    atomicAdd_system(words + BEGUN, 1ULL);
    while (!over(words, began, limit)) __nanosleep(500);
}

// Copies at a pace, in pieces of 64 KiB a block of 1024 threads, four vectors a thread in flight. The pace is in 2^-10 bytes,
// read and written, a microsecond.
extern "C" __global__ void __launch_bounds__(1024) move(u64* words, u64 limit, const uint4* from, uint4* to, u64 count, u64 pace) {
    __shared__ bool done;
    const u64 piece = 4096;
    u64 began = now(), moved = 0, at = blockIdx.x * piece;
    if (threadIdx.x == 0) atomicAdd_system(words + BEGUN, 1ULL);
    for (;;) {
        if (threadIdx.x == 0) {
            done = over(words, began, limit);
            // Ahead of the pace: wait.
            while (!done && moved * 1024 > (now() - began) * pace / 1000) {
                __nanosleep(200);
                done = over(words, began, limit);
            }
        }
        __syncthreads();
        if (done) break;
        if (at + piece > count) at = blockIdx.x * piece;
        uint4 held[4];
#pragma unroll
        for (int i = 0; i < 4; i++) held[i] = from[at + i * 1024 + threadIdx.x];
#pragma unroll
        for (int i = 0; i < 4; i++) to[at + i * 1024 + threadIdx.x] = held[i];
        at += gridDim.x * piece;
        moved += 2 * piece * 16;
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        atomicAdd_system(words + BYTES, moved);
        if (blockIdx.x == 0) words[NANOS] = now() - began;
    }
}
