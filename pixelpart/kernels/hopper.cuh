// Building blocks of kernels for Hopper's tensor cores. A pixel is a line of 128 bytes in shared memory: 64 channels in bf16.
//
// Defined by the caller: FORWARD; PLAIN, the convolution without bias, ReLU and gate; NUMBERS, the sums of a warpgroup that a
// thread holds; PRODUCT and REGISTERS(d), the instruction that adds to them and its operands.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short bf16;

constexpr int LINE = 128, BOX = 128 * LINE, SQUARE = 64 * LINE;  // bytes: 64 channels; 128 pixels; weights of 64 channels

constexpr bool RELU = FORWARD && !PLAIN, GATE = !FORWARD && !PLAIN;  // the gate is the output of the ReLU before

struct alignas(64) TensorMap {  // a tensor map for the tensor memory accelerator
    u64 words[16];
};

// The offset of a chunk of a line: their order changes from line to line (128-byte swizzle), as the tensor cores require.
__device__ u32 spot(int line, int chunk) { return line * LINE + ((chunk ^ (line & 7)) << 4); }

__device__ void meet(int barrier, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory"); }

// Barriers in shared memory: threads arrive, bytes arrive, and a phase ends.
__device__ void set(u32 barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ void arrive(u32 barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory"); }
__device__ void expect(u32 barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ void wait(u32 barrier, int parity) {
    u32 over = 0;
    while (!over)
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(over)
            : "r"(barrier), "r"(parity)
            : "memory");
}

__device__ void fetch(u32 to, const TensorMap& map, u32 barrier, int channel, int column, int row, int image) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(
            to),
        "l"(&map), "r"(barrier), "r"(channel), "r"(column), "r"(row), "r"(image)
        : "memory");
}
__device__ void fetch(u32 to, const TensorMap& map, u32 barrier, int channel, int tap, int row) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
        "l"(&map), "r"(barrier), "r"(channel), "r"(tap), "r"(row)
        : "memory");
}
__device__ void store(const TensorMap& map, u32 from, int channel, int row, int image) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, 0, %3, %4}], [%1];" ::"l"(&map), "r"(from),
                 "r"(channel), "r"(row), "r"(image)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ void stored() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }  // its source has been read
__device__ void announce(const TensorMap& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }

// The descriptor of a matrix in shared memory: groups of eight lines, 1024 bytes apart, 128-byte swizzle. It may begin at any
// line: the swizzle depends on address bits, here as in `spot`, so the offset of its pattern stays 0.
__device__ u64 matrix(u32 address) { return (u64)(address >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62; }

// Weights [64 x 16] times pixels [16 x 2 NUMBERS].
__device__ void multiply(float (&d)[NUMBERS], u64 weights, u64 pixels) {
    asm volatile(PRODUCT : REGISTERS(d) : "l"(weights), "l"(pixels), "n"(FORWARD ? 0 : 1));
}
__device__ void settle(float (&d)[NUMBERS]) {  // keeps the compiler from moving the sums while products run
#pragma unroll
    for (int i = 0; i < NUMBERS; i++) asm volatile("" : "+f"(d[i])::"memory");
}

// Waits until the previous kernel has ended, and lets the next one start, up to its own wait.
__device__ void wait_for_others() { asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory"); }

__device__ u32 pair(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
__device__ float low(u32 both) { return __uint_as_float(both << 16); }
__device__ float high(u32 both) { return __uint_as_float(both & 0xffff0000); }
__device__ float relu(float value) { return value < 0 ? 0 : value; }  // NaN stays
__device__ u32 gated(u32 both, u32 gate) {
    return (low(gate) > 0 ? both & 0xffff : 0) | (high(gate) > 0 ? both & 0xffff0000 : 0);
}

// 16 pixels by 16 channels of a warp; a thread holds two pixels of each of the four groups of 8 by 8.
__device__ void read(u32 (&v)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(at)
                 : "memory");
}
__device__ void write(const u32 (&v)[4], u32 at) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v[0]), "r"(v[1]),
                 "r"(v[2]), "r"(v[3])
                 : "memory");
}

// Two sums after ReLU or gate, as bf16.
__device__ u32 finished(float a, float b, u32 gate) {
    const u32 both = RELU ? pair(relu(a), relu(b)) : pair(a, b);
    return GATE ? gated(both, gate) : both;
}
