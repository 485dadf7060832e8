// A 3x3 convolution as a sum over taps, with bias, sum and ReLU, in bf16, for Hopper's tensor cores.
//
// forward:   out = relu(sum of weights[tap] * pixels[tap] + bias [+ other])
// backward:  out = where(gate > 0, sum of transposed weights[tap] * pixels[tap] [+ other], 0)
// plain:     either of them without bias, ReLU and gate
//
// A tap reads a box of up to 128 pixels of 64 channels, shifted by its offset; pixels outside the image are zero. A convolution
// of stride 2 has four views of the finer image, of every other row and column: forward each tap reads one of them, backward
// each of them is a kind of result with taps of its own. The last kind may have one more tap with other pixels and weights: the
// 1x1 shortcut of a residual block.
//
// One warp fetches boxes and weights into a ring of stages with the tensor memory accelerator; two warpgroups multiply
// weights [64 x 16] by pixels [16 x 128 or 256]. A tile has 128 channels, half of them for each warpgroup (CHUNKS 2), or 64
// (CHUNKS 1, with one of its two boxes for each), and PIECES boxes of pixels. `other` and `gate` pass through the ring as well,
// and results are stored from there.
//
// If there are fewer tiles than processors, SPLIT blocks share one: each sums its part of the steps and gives half of the sums
// to the other. A block starts while the previous kernel ends, up to the point where it needs that kernel's results.
//
// Defined by the caller: FORWARD, PLAIN, OTHER (whether there is one), CHUNKS, PIECES, SPLIT, STAGES; hopper.cuh comes first.

constexpr int STAGE = PIECES * BOX + CHUNKS * SQUARE;
constexpr int HALVES = CHUNKS == 2 ? PIECES : 1;  // boxes per warpgroup

struct Tap {
    int view, weight, right, down;
};

struct Work {  // as in conv3x3.py
    TensorMap source[4], weights, extra, extra_weights, out[4], gate[4], other;
    const bf16 *bias, *extra_bias;
    Tap taps[9];
    int first[5];                     // number of a kind's first tap
    int kinds, chunks, extra_chunks;  // chunks of 64 channels
    int across, tiles;                // of the result: tiles of channels, tiles of pixels
    int rows, boxes, images, bytes;   // rows per box, boxes per image, images per box; bytes of a box
};

__device__ void exchange() { asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory"); }

// The stages in cyclic order.
struct Ring {
    int stage = 0, parity = 0;

    __device__ void next() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

__device__ int part_of_block() {
    u32 number = 0;
    if (SPLIT > 1) asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(number));
    return number;
}

__device__ u32 away(u32 address, int block) {
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
    return there;
}

struct Item {
    int kind, tile, across, begin, end, own;  // begin, end: steps of this block; own: steps of the taps

    __device__ Item(const Work& work, int part, int number) {
        const int each = work.tiles * work.across;
        kind = number / each;
        tile = number % each / work.across;
        across = number % work.across;
        own = (work.first[kind + 1] - work.first[kind]) * work.chunks;
        const int steps = own + (kind == work.kinds - 1 ? work.extra_chunks : 0);
        begin = part * steps / SPLIT;
        end = (part + 1) * steps / SPLIT;
    }
    __device__ int channel(int group) const { return 64 * (across * CHUNKS + (CHUNKS == 2 ? group : 0)); }
    __device__ int box(int group, int half) const { return tile * PIECES + (CHUNKS == 2 ? half : group); }
};

// Whether this block stores a box of the results.
__device__ bool has(int part, int group, int half) { return SPLIT == 1 || (HALVES == 2 ? half : group) == part; }

// Where a box of pixels begins.
struct Corner {
    int row, image;

    __device__ Corner(const Work& work, int box) : row(box % work.boxes * work.rows), image(box / work.boxes * work.images) {}
};

// A single thread runs this, so it does little work per step.
__device__ void fetch_steps(const Work& work, const Item& item, Ring& ring, u32 stages, u32 full, u32 empty) {
    const int first = work.first[item.kind], taps = work.first[item.kind + 1] - first;
    int row[PIECES], image[PIECES];
    for (int p = 0; p < PIECES; p++) {
        const Corner corner(work, item.tile * PIECES + p);
        row[p] = corner.row;
        image[p] = corner.image;
    }
    // Correct for a begin less than work.chunks after the taps: extra has fewer than 11 times as many channels.
    int next = item.begin / work.chunks, chunk = item.begin % work.chunks, chunks = 0;
    Tap tap;
    const TensorMap *source, *weights;
    for (int k = item.begin; k < item.end; k++, chunk++, ring.next()) {
        if (chunk == chunks || k == item.begin) {
            const bool own = next < taps;
            tap = own ? work.taps[first + next] : Tap{0, 0, 0, 0};
            source = own ? &work.source[tap.view] : &work.extra;
            weights = own ? &work.weights : &work.extra_weights;
            chunks = own ? work.chunks : work.extra_chunks;
            chunk = k == item.begin ? chunk : 0;
            next++;
        }
        const u32 pixels = stages + ring.stage * STAGE, to = pixels + PIECES * BOX, bell = full + 8 * ring.stage;
        wait(empty + 8 * ring.stage, ring.parity ^ 1);
        expect(bell, PIECES * work.bytes + CHUNKS * SQUARE);
        for (int p = 0; p < PIECES; p++)
            fetch(pixels + p * BOX, *source, bell, 64 * chunk, tap.right, row[p] + tap.down, image[p]);
        if (FORWARD)
            fetch(to, *weights, bell, 64 * chunk, tap.weight, item.channel(0));
        else
            for (int g = 0; g < CHUNKS; g++) fetch(to + g * SQUARE, *weights, bell, item.channel(g), tap.weight, 64 * chunk);
    }
}

// Fetches `other` and `gate`: one stage for each box.
__device__ void fetch_rest(const Work& work, int part, const Item& item, Ring& ring, u32 stages, u32 full, u32 empty) {
    for (int half = 0; half < HALVES; half++)
        for (int group = 0; group < 2; group++) {
            if (!has(part, group, half)) continue;
            const Corner corner(work, item.box(group, half));
            const u32 to = stages + ring.stage * STAGE, bell = full + 8 * ring.stage;
            wait(empty + 8 * ring.stage, ring.parity ^ 1);
            expect(bell, (GATE + OTHER) * work.bytes);
            if (OTHER) fetch(to, work.other, bell, item.channel(group), 0, corner.row, corner.image);
            if (GATE) fetch(to + BOX, work.gate[item.kind], bell, item.channel(group), 0, corner.row, corner.image);
            ring.next();
        }
}

// Writes a box of results, made from these sums, over the box that held `other`.
__device__ void finish(const float* sum, const float (&shift)[2], u32 box, int warp, int lane) {
#pragma unroll
    for (int g = 0; g < 16; g += 2) {
        const u32 at = box + spot(8 * g + lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2);
        u32 v[4] = {0, 0, 0, 0}, gate[4] = {0, 0, 0, 0};
        if (OTHER) read(v, at);
        if (GATE) read(gate, at + BOX);
#pragma unroll
        for (int m = 0; m < 4; m++) {
            const float* both = sum + 4 * (g + m / 2) + m % 2 * 2;
            v[m] = finished(both[0] + shift[m % 2] + low(v[m]), both[1] + shift[m % 2] + high(v[m]), gate[m]);
        }
        write(v, at);
    }
}

// Gives half of the sums to the block that shares the tile and adds that block's sums to the other half, which is then first.
__device__ void share(float (&sum)[NUMBERS], int part, u32 room, int group, int thread) {
    const u32 here = room + (HALVES == 2 ? group * 2 * BOX : 0) + 16 * thread, to = away(here, 1 - part);
    const bool gives = HALVES == 2 || group != part;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        float v[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int at = 4 * i + j, far = NUMBERS + at - 64;  // equal if there is one half
            v[j] = part ? sum[at] : sum[far];
            if (HALVES == 2) sum[at] = part ? sum[far] : sum[at];
        }
        if (gives)
            asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to + i * 2048), "f"(v[0]), "f"(v[1]), "f"(v[2]),
                         "f"(v[3])
                         : "memory");
    }
    exchange();
    if (HALVES == 1 && gives) return;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        float v[4];
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
                     : "r"(here + i * 2048)
                     : "memory");
#pragma unroll
        for (int j = 0; j < 4; j++) sum[4 * i + j] += v[j];
    }
}

extern "C" __global__ void __launch_bounds__(288, 1) __cluster_dims__(SPLIT, 1, 1) conv3x3(const __grid_constant__ Work work) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const u32 stages = (u32)__cvta_generic_to_shared(memory), room = stages + STAGES * STAGE;  // room: for shared sums
    const u32 full = room + (SPLIT - 1) * 2 * HALVES * BOX, empty = full + 8 * STAGES;
    const int group = threadIdx.x / 128, thread = threadIdx.x % 128, lane = thread % 32, warp = thread / 32;
    const int part = part_of_block(), items = work.kinds * work.tiles * work.across;
    const int start = blockIdx.x / SPLIT, step = gridDim.x / SPLIT;

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) set(full + 8 * i, 1), set(empty + 8 * i, 8);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (threadIdx.x == 256) {
        announce(work.source[0]), announce(work.weights), announce(work.out[0]);
        if (OTHER) announce(work.other);
        if (GATE) announce(work.gate[0]);
    }
    __syncthreads();
    if (SPLIT > 1) exchange();  // the other block has started
    wait_for_others();

    Ring ring;
    if (group == 2) {
        if (thread == 0)
            for (int number = start; number < items; number += step) {
                const Item item(work, part, number);
                fetch_steps(work, item, ring, stages, full, empty);
                fetch_rest(work, part, item, ring, stages, full, empty);
            }
        if (SPLIT > 1) exchange();
        return;
    }

    const auto release = [&](int stage) {
        if (lane == 0) arrive(empty + 8 * stage);
    };
    for (int number = start; number < items; number += step) {
        const Item item(work, part, number);
        float sum[NUMBERS];
#pragma unroll
        for (int i = 0; i < NUMBERS; i++) sum[i] = 0;
        int before = -1;
        for (int k = item.begin; k < item.end; k++, ring.next()) {
            const u32 pixels = stages + ring.stage * STAGE + (CHUNKS == 1 ? group * BOX : 0);
            const u32 weights = stages + ring.stage * STAGE + PIECES * BOX + (CHUNKS == 2 ? group * SQUARE : 0);
            wait(full + 8 * ring.stage, ring.parity);
            settle(sum);
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
            for (int q = 0; q < 4; q++)  // 16 channels: a quarter of a line, or 16 lines of the transposed weights
                multiply(sum, matrix(weights + q * (FORWARD ? 32 : 16 * LINE)), matrix(pixels + q * 32));
            asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 1;" ::: "memory");
            if (before >= 0) release(before);
            before = ring.stage;
        }
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        release(before);
        settle(sum);
        if (SPLIT > 1) share(sum, part, room, group, thread);

        const int mine = item.channel(group) + 16 * warp + lane / 4;
        float shift[2] = {0, 0};
        if (RELU)
            for (int i = 0; i < 2; i++)
                shift[i] = low(work.bias[mine + 8 * i]) + (work.extra_bias ? low(work.extra_bias[mine + 8 * i]) : 0);
        int held[HALVES];
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            held[half] = -1;
#pragma unroll
            for (int g = 0; g < 2; g++) {
                if (!has(part, g, half)) continue;
                const u32 box = stages + ring.stage * STAGE;
                wait(full + 8 * ring.stage, ring.parity);
                if (g == group) {
                    finish(sum + (SPLIT > 1 ? 0 : 64 * half), shift, box, warp, lane);
                    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                    meet(1 + group, 128);
                    if (thread == 0) {
                        const Corner corner(work, item.box(group, half));
                        store(work.out[item.kind], box, item.channel(group), corner.row, corner.image);
                    }
                    held[half] = ring.stage;
                } else
                    release(ring.stage);
                ring.next();
            }
        }
        if (thread == 0) stored();
        meet(1 + group, 128);
#pragma unroll
        for (int half = 0; half < HALVES; half++)
            if (held[half] >= 0) release(held[half]);
    }
}
