// A 3x3 convolution of 64 channels to 64 with what follows it, in bf16, for Hopper's tensor cores.
//
// forward:   out = relu(conv(x, weight) + bias [+ other])
// backward:  out = where(rectified > 0, transposed conv(x, weight) [+ other], 0)
//
// A tile is ROWS rows of an image with a border of one pixel. It lies in shared memory pixel behind pixel, 64 channels in
// a line of 128 bytes each, so that what any of the nine taps reads is the same memory, some lines further on. So each
// pixel is fetched once, where a product over gathered neighbours fetches it nine times and waits for that. The two
// positions behind a row of the image are computed too, and dropped.
//
// Products are weights [64 x 16] times pixels [16 x 136]. Three warpgroups have two tiles each and take turns: while one
// multiplies, with all tensor cores to itself, the others store what they have and fetch what comes next.
//
// Given: WIDTH (of the image), ROWS, FORWARD, and ACCUMULATORS, REGISTERS(d): 68 numbers as assembly and C name them.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short bf16;

constexpr int CHANNELS = 64, TAPS = 9, GROUPS = 3, POSITIONS = 136;
constexpr int LINE = 2 * CHANNELS;               // bytes of a pixel
constexpr int PADDED = WIDTH + 2;                // pixels from a row to the next
constexpr int LINES = 206;                       // of a tile
constexpr int WEIGHTS = TAPS * CHANNELS * LINE;  // bytes
constexpr int CHUNKS = (ROWS * WIDTH * 8 + 127) / 128;  // of 16 bytes, that a thread has of a tile without its border
static_assert(ROWS * PADDED - 2 <= POSITIONS && (ROWS + 2) * PADDED <= LINES, "a tile does not fit");
static_assert(POSITIONS + 2 * PADDED + 2 <= LINES, "what the last tap reads does not fit");

// Where a chunk of a line lies: their order changes from line to line, as the tensor cores want it.
__device__ u32 place(int line, int chunk) { return line * LINE + ((chunk ^ (line & 7)) << 4); }

__device__ void fetch(u32 to, const bf16* from, bool inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0));
}

// What this thread fetched is there, for the tensor cores too.
__device__ void arrived() { asm volatile("cp.async.wait_all;\nfence.proxy.async.shared::cta;" ::: "memory"); }

// Named barriers: all weights are there; the threads of a warpgroup; a warpgroup's turn, given by the one before it.
constexpr int START = 0, SELF = 1, TURN = SELF + GROUPS;
__device__ void meet(int barrier, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory"); }
__device__ void give(int barrier, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory"); }

// A matrix in shared memory: groups of eight lines, 1024 bytes from one to the next, 128-byte swizzle. It may begin at any
// line: the swizzle goes by the bits of an address, here as in `place`, so the offset of its pattern stays 0.
__device__ u64 matrix(u32 address) { return (u64)(address >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62; }

__device__ void multiply(float (&d)[68], u64 weights, u64 pixels) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n136k16.f32.bf16.bf16 {" ACCUMULATORS "}, %68, %69, 1, 1, 1, %70, 0;"
        : REGISTERS(d)
        : "l"(weights), "l"(pixels), "n"(FORWARD ? 0 : 1));
}

__device__ u32 pair(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

__device__ float low(u32 both) { return __uint_as_float(both << 16); }
__device__ float high(u32 both) { return __uint_as_float(both & 0xffff0000); }
__device__ float relu(float value) { return value < 0 ? 0 : value; }  // NaN stays

// Both of them where the gate's are above zero.
__device__ u32 gated(u32 both, u32 gate) {
    return (low(gate) > 0 ? both & 0xffff : 0) | (high(gate) > 0 ? both & 0xffff0000 : 0);
}

__device__ uint4 load(const bf16* from) {  // in its place: the compiler is not to bring it forward
    uint4 v;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
    return v;
}

// The tile that begins in this row of the image, with its border, into these lines.
__device__ void fetch_tile(u32 lines, int line, const bf16* image, int top, int height, int thread) {
    for (int i = thread; i < (ROWS + 2) * PADDED * 8; i += 128) {
        const int pixel = i / 8, chunk = i % 8, row = top + pixel / PADDED - 1, column = pixel % PADDED - 1;
        const bool inside = row >= 0 && row < height && column >= 0 && column < WIDTH;
        fetch(lines + place(line + pixel, chunk), inside ? image + (row * WIDTH + column) * CHANNELS + chunk * 8 : image,
              inside);
    }
}

extern "C" __global__ void __launch_bounds__(128 * GROUPS, 1)
    conv64(const bf16* x, const bf16* weight, const bf16* bias, const bf16* other, const bf16* rectified, bf16* out,
           int images, int height) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const u32 weights = (u32)__cvta_generic_to_shared(memory), lines = weights + WEIGHTS;
    const int group = threadIdx.x / 128, thread = threadIdx.x % 128, lane = thread % 32, warp = thread / 32;
    const int down = (height + ROWS - 1) / ROWS, step = GROUPS * gridDim.x, size = height * WIDTH * CHANNELS;

    // A block begins while the kernel before this one ends, up to here, and lets the next one do so.
    asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory");
    if (group) {  // the first is to begin with its tile
        for (int i = threadIdx.x - 128; i < WEIGHTS / 16; i += 128 * (GROUPS - 1)) {
            const int line = i / 8, tap = line / CHANNELS, channel = line % CHANNELS;
            fetch(weights + place(line, i % 8), weight + (channel * TAPS + tap) * CHANNELS + i % 8 * 8, true);
        }
        arrived();
        give(START, 128 * GROUPS);
    }

    int t = group * gridDim.x + blockIdx.x, line = 2 * group * LINES, spare = line + LINES;
    if (t < images * down) fetch_tile(lines, line, x + (u64)(t / down) * size, t % down * ROWS, height, thread);
    for (; t < images * down; t += step) {
        const int top = t % down * ROWS, chunks = min(ROWS, height - top) * WIDTH * 8;
        const u64 here = (u64)(t / down) * size + top * WIDTH * CHANNELS;
        uint4 gate[CHUNKS] = {}, near[CHUNKS] = {};
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            const int i = c * 128 + thread;
            if (!FORWARD && i < chunks) gate[c] = load(rectified + here + i * 8);
            if (other && i < chunks) near[c] = load(other + here + i * 8);
        }
        float sum[68];
#pragma unroll
        for (int i = 0; i < 68; i++) {
            sum[i] = 0;
            asm volatile("" : "+f"(sum[i]));
        }
        arrived();
        meet(SELF + group, 128);
        if (t == blockIdx.x)
            meet(START, 128 * GROUPS);
        else
            meet(TURN + group, 256);

        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++) {
            const int shift = FORWARD ? tap / 3 * PADDED + tap % 3 : (2 - tap / 3) * PADDED + 2 - tap % 3;
#pragma unroll
            for (int k = 0; k < 4; k++)  // 16 channels: a quarter of a line, or 16 lines of the weights' transpose
                multiply(sum, matrix(weights + tap * CHANNELS * LINE + k * (FORWARD ? 32 : 16 * LINE)),
                         matrix(lines + (line + shift) * LINE + k * 32));
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        give(TURN + (group + 1) % GROUPS, 256);
        if (t + step < images * down)
            fetch_tile(lines, spare, x + (u64)((t + step) / down) * size, (t + step) % down * ROWS, height, thread);
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
        for (int i = 0; i < 68; i++) asm volatile("" : "+f"(sum[i]));

        // The tile is spent: `other` comes into its place, and then the result.
        meet(SELF + group, 128);
        if (other) {
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) {
                const int i = c * 128 + thread, pixel = i / 8 / WIDTH * PADDED + i / 8 % WIDTH;
                if (i < chunks)
                    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(lines + place(line + pixel, i % 8)),
                                 "r"(near[c].x), "r"(near[c].y), "r"(near[c].z), "r"(near[c].w)
                                 : "memory");
            }
            meet(SELF + group, 128);
        }
        const int channel = 16 * warp + lane / 4;
        const float shift[2] = {FORWARD ? low(bias[channel]) : 0, FORWARD ? low(bias[channel + 8]) : 0};
#pragma unroll
        for (int g = 0; g < 18; g += 2) {  // sixteen pixels by sixteen channels of a warp; at the end eight pixels
            const int pixel = 8 * g + (g < 16 ? lane / 16 * 8 : 0) + lane % 8;
            const u32 at = lines + place(line + pixel, 2 * warp + lane / 8 % 2);
            u32 v[4] = {0, 0, 0, 0};
            if (other)
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                             : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                             : "r"(at)
                             : "memory");
#pragma unroll
            for (int m = 0; m < 4; m++) {
                if (4 * (g + m / 2) >= 68) continue;
                const float a = sum[4 * (g + m / 2) + m % 2 * 2] + shift[m % 2] + low(v[m]);
                const float b = sum[4 * (g + m / 2) + m % 2 * 2 + 1] + shift[m % 2] + high(v[m]);
                v[m] = FORWARD ? pair(relu(a), relu(b)) : pair(a, b);
            }
            if (g < 16)
                asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v[0]),
                             "r"(v[1]), "r"(v[2]), "r"(v[3])
                             : "memory");
            else
                asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(at), "r"(v[0]), "r"(v[1])
                             : "memory");
        }
        meet(SELF + group, 128);
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            const int i = c * 128 + thread, pixel = i / 8 / WIDTH * PADDED + i / 8 % WIDTH;
            if (i >= chunks) continue;
            uint4 v;
            asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                         : "r"(lines + place(line + pixel, i % 8)));
            if (!FORWARD)
                v = {gated(v.x, gate[c].x), gated(v.y, gate[c].y), gated(v.z, gate[c].z), gated(v.w, gate[c].w)};
            *(uint4*)(out + here + i * 8) = v;
        }
        meet(SELF + group, 128);  // the tile may be fetched into again
        const int spent = line;
        line = spare;
        spare = spent;
    }
}
