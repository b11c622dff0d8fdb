/* Notes the CUDA runtime's copies, fills, waits and kernels in call order: cc -shared -fPIC -o runtime_calls.so runtime_calls.c -ldl,
   then ahead of the stubs in LD_PRELOAD. Python reads them through `noted` and notes things of its own through `note`. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef struct { unsigned x, y, z; } dim3;
static char log_[1 << 24];
static size_t end;

void note(const char *what, size_t bytes) {
    if (end + 64 < sizeof log_) end += sprintf(log_ + end, bytes ? "%s %zu\n" : "%s\n", what, bytes);
}
const char *noted(void) { log_[end] = 0; return log_; }
void forget(void) { end = 0; }

#define NEXT(name, ...) ((int (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name))
int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream) {
    static const char *kinds[] = {"host to host", "to device", "to host", "on device", "either"};
    note(kinds[kind], bytes);
    return NEXT("cudaMemcpyAsync", void *, const void *, size_t, int, void *)(to, from, bytes, kind, stream);
}
int cudaMemsetAsync(void *to, int value, size_t bytes, void *stream) {
    note("fill", bytes);
    return NEXT("cudaMemsetAsync", void *, int, size_t, void *)(to, value, bytes, stream);
}
int cudaStreamSynchronize(void *stream) {
    note("wait", 0);
    return NEXT("cudaStreamSynchronize", void *)(stream);
}
#define LAUNCH(name)                                                                                                            \
    int name(const void *kernel, dim3 grid, dim3 block, void **args, size_t shared, void *stream) {                            \
        note("kernel", 0);                                                                                                      \
        return NEXT(#name, const void *, dim3, dim3, void **, size_t, void *)(kernel, grid, block, args, shared, stream);       \
    }
LAUNCH(cudaLaunchKernel)
LAUNCH(__cudaLaunchKernel)
