// A 3x3 convolution of 64 to 64 channels with bias, sum and ReLU, in bf16, for Hopper's tensor cores.
//
// forward:   out = relu(conv(x, weight) + bias [+ other])
// backward:  out = where(gate > 0, transposed conv(x, weight) [+ other], 0)
// plain:     either of them without bias, ReLU and gate
//
// A tile is ROWS rows of an image with a border of one pixel, stored in shared memory pixel after pixel. Each of the nine taps
// reads the same memory at another offset, so every pixel is fetched once; a product over gathered neighbours would fetch it
// nine times. The two positions after each row of the image are computed too, and discarded.
//
// Products are weights [64 x 16] times pixels [16 x 136]. One warp fetches weights, tiles, `other` and `gate` with the tensor
// memory accelerator. Three warpgroups take turns: while one multiplies and has all tensor cores to itself, the others apply
// bias and ReLU and store their results.
//
// Defined by the caller: FORWARD, PLAIN, OTHER (whether there is one), WIDTH (of the image), ROWS, TILES (in shared memory);
// hopper.cuh comes first.

constexpr int TAPS = 9, GROUPS = 3, POSITIONS = 2 * NUMBERS;
constexpr int PADDED = WIDTH + 2;                                 // pixels from one row to the next
constexpr int LINES = 206, TILE = (LINES * LINE + 1023) & ~1023;  // lines and bytes of a tile
constexpr int BOXES = GATE + OTHER > 1 ? 2 : 1;                   // per warpgroup: result and `other` share one
static_assert(ROWS * PADDED - 2 <= POSITIONS && (ROWS + 2) * PADDED <= LINES, "a tile does not fit");
static_assert(POSITIONS + 2 * PADDED + 2 <= LINES, "what the last tap reads does not fit");
static_assert(ROWS * WIDTH * LINE <= BOX, "a result does not fit");

struct Work {  // as in conv64.py
    TensorMap source, weights, out, gate, other;
    const bf16* bias;
    int images, down;  // down: tiles per image
};

// Named barriers: the threads of a warpgroup (SELF); its turn to multiply, given by the warpgroup before it (TURN).
constexpr int SELF = 1, TURN = SELF + GROUPS;
__device__ void give(int barrier, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory"); }

extern "C" __global__ void __launch_bounds__(128 * GROUPS + 32, 1) conv64(const __grid_constant__ Work work) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const u32 weights = (u32)__cvta_generic_to_shared(memory), tiles = weights + TAPS * SQUARE;
    const u32 boxes = tiles + TILES * TILE, nowhere = boxes + GROUPS * BOXES * BOX;  // eight lines that receive discarded results
    const u32 learnt = nowhere + 8 * LINE, full = learnt + 8, empty = full + 8 * TILES;
    const u32 there = empty + 8 * TILES, spent = there + 8 * GROUPS;
    const int group = threadIdx.x / 128, thread = threadIdx.x % 128, lane = thread % 32, warp = thread / 32;
    const int all = work.images * work.down;

    if (threadIdx.x == 0) {
        set(learnt, 1);
        for (int i = 0; i < TILES; i++) set(full + 8 * i, 1), set(empty + 8 * i, 4);
        for (int g = 0; g < GROUPS; g++) set(there + 8 * g, 1), set(spent + 8 * g, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (threadIdx.x == 128 * GROUPS) announce(work.source), announce(work.weights), announce(work.out);
    __syncthreads();
    wait_for_others();

    if (group == GROUPS) {
        if (thread) return;
        for (int n = 0, t = blockIdx.x; t < all; n++, t += gridDim.x) {
            const int image = t / work.down, top = t % work.down * ROWS, slot = n % TILES, g = n % GROUPS;
            wait(empty + 8 * slot, n / TILES + 1 & 1);
            expect(full + 8 * slot, (ROWS + 2) * PADDED * LINE);
            fetch(tiles + slot * TILE, work.source, full + 8 * slot, 0, -1, top - 1, image);
            if (n == 0) {
                expect(learnt, TAPS * SQUARE);
                for (int tap = 0; tap < TAPS; tap++) fetch(weights + tap * SQUARE, work.weights, learnt, 0, tap, 0);
            }
            if (GATE || OTHER) {
                const u32 box = boxes + g * BOXES * BOX;
                wait(spent + 8 * g, n / GROUPS + 1 & 1);
                expect(there + 8 * g, (GATE + OTHER) * ROWS * WIDTH * LINE);
                if (OTHER) fetch(box, work.other, there + 8 * g, 0, 0, top, image);
                if (GATE) fetch(box + (BOXES - 1) * BOX, work.gate, there + 8 * g, 0, 0, top, image);
            }
        }
        return;
    }

    const u32 box = boxes + group * BOXES * BOX;
    const int channel = 16 * warp + lane / 4;
    float shift[2] = {0, 0};
    if (RELU)
        for (int i = 0; i < 2; i++) shift[i] = low(work.bias[channel + 8 * i]);
    wait(learnt, 0);
    for (int n = group, t = blockIdx.x + group * gridDim.x; t < all; n += GROUPS, t += GROUPS * gridDim.x) {
        const int slot = n % TILES;
        const u32 tile = tiles + slot * TILE;
        float sum[NUMBERS];
#pragma unroll
        for (int i = 0; i < NUMBERS; i++) sum[i] = 0;
        if (n) meet(TURN + group, 256);
        wait(full + 8 * slot, n / TILES & 1);  // only in its turn: a barrier distinguishes odd from even phases and nothing else

        settle(sum);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++) {
            const int line = FORWARD ? tap / 3 * PADDED + tap % 3 : (2 - tap / 3) * PADDED + 2 - tap % 3;
#pragma unroll
            for (int k = 0; k < 4; k++)  // 16 channels: a quarter of a line, or 16 lines of the transposed weights
                multiply(sum, matrix(weights + tap * SQUARE + k * (FORWARD ? 32 : 16 * LINE)), matrix(tile + line * LINE + k * 32));
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        give(TURN + (group + 1) % GROUPS, 256);
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        settle(sum);
        if (lane == 0) arrive(empty + 8 * slot);

        meet(SELF + group, 128);  // the previous result has been stored
        if (GATE || OTHER) wait(there + 8 * group, n / GROUPS & 1);
#pragma unroll
        for (int g = 0; g < 18; g += 2) {  // 16 positions by 16 channels per warp; the last 8 positions do not exist
            const int position = 8 * g + lane / 16 * 8 + lane % 8, row = position / PADDED, column = position % PADDED;
            const bool inside = row < ROWS && column < WIDTH;
            const int line = inside ? row * WIDTH + column : lane % 8, chunk = 2 * warp + lane / 8 % 2;
            const u32 at = (inside ? box : nowhere) + spot(line, chunk);
            u32 v[4] = {0, 0, 0, 0}, gate[4] = {0, 0, 0, 0};
            if (OTHER) read(v, at);
            if (GATE) read(gate, inside ? at + (BOXES - 1) * BOX : at);
#pragma unroll
            for (int m = 0; m < 4; m++) {
                const float* both = sum + (4 * (g + m / 2) + m % 2 * 2) % NUMBERS;
                v[m] = finished(both[0] + shift[m % 2] + low(v[m]), both[1] + shift[m % 2] + high(v[m]), gate[m]);
            }
            write(v, at);
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        meet(SELF + group, 128);
        if (thread == 0) {
            store(work.out, box, 0, t % work.down * ROWS, t / work.down);
            stored();
            arrive(spent + 8 * group);
        }
    }
}
