// A matrix in the order of the kernels, and activations rounded for it.
//
// Order of the weights: 16 rows of the matrix are a block. Of a block, four neighbouring columns of all 16 rows
// are 64 numbers, one register: a quad. In 4 bits a byte holds two quads, the first in its low half. In 6 bits four
// quads take three registers: their low four bits so, and then their high two bits, the first quad's lowest. In 5 bits
// eight quads take five.
//
// A weight is `scale * (value - zero) + offset`. As in the files of llama.cpp, a scale may be a factor in 8 bits for
// each group of weights times a number in f16 for a span of groups, and an offset always is. Values of MXFP4 are floats
// in 4 bits, which a table makes whole numbers, and the factor of a group is a power of two.
//
// An activation is rounded to int8 with one scale per chunk of 32 or 64 columns. The product of a chunk is exact
// in int32, and is scaled and added in f32.

#pragma once

#include <immintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,fma"), flatten))
#define AVX2 __attribute__((target("avx2,f16c,fma"), flatten))
#define INLINE __attribute__((always_inline)) inline

namespace ovserve {

constexpr size_t ROWS = 16;            // of a block
constexpr size_t HUGE_PAGE = 2 << 20;  // bytes
constexpr size_t LINE = 64;            // bytes of a cache line

// One mapping for all matrices of a model, so that only its last huge page is partly used.
struct Arena {
    uint8_t* begin = nullptr;
    size_t size = 0, used = 0;

    explicit Arena(size_t bytes) : size((bytes + 2 * HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE) {
        void* mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (mapped == MAP_FAILED) throw std::bad_alloc();
        begin = static_cast<uint8_t*>(mapped);
        madvise(begin, size, MADV_HUGEPAGE);
        used = (HUGE_PAGE - reinterpret_cast<uintptr_t>(begin) % HUGE_PAGE) % HUGE_PAGE;
    }
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;
    ~Arena() { munmap(begin, size); }

    uint8_t* take(size_t bytes) {
        bytes = (bytes + LINE - 1) / LINE * LINE;
        if (used + bytes > size) return nullptr;
        uint8_t* at = begin + used;
        used += bytes;
        return at;
    }
};

struct Matrix;
struct Rounded;
// `weights`: of the block.
using BlockFunction = void (*)(const Matrix&, const Rounded&, size_t token, size_t block, const uint8_t* weights,
                               float* out, size_t stride);
// Functions of one token, two, and so on.
using Functions = std::vector<BlockFunction>;

// What a matrix is made of: rows of packed values, and numbers of rows and groups. `matmul.py` has the same.
struct Source {
    size_t rows, columns, bits;
    size_t group, chunk;         // columns that share a factor, an offset or a zero; and a scale of activations
    size_t span, offset_span;    // columns that share a number in f16
    uint32_t flip;               // bits of four bytes that are turned over, which makes signed values unsigned
    int32_t zero;                // of all groups, where `zeros` is null
    int32_t is_file;             // the values are pages of a file, which may be given back
    int32_t is_float;            // the values are E2M1 and the factors E8M0
    float offset_unit;           // times the numbers in f16 of offsets, which may be too small for that
    const uint8_t* values;       // [rows, columns], packed; of 5 bits the low four
    const uint8_t* high;         // [rows, columns], the fifth bits: of eight in a byte the first is the highest
    const uint16_t* scales;      // f16 [rows, columns / span], or null: one per row
    const int8_t* factors;       // [rows, columns / group], or null: 1
    const uint16_t* zeros;       // f16, the same shape, or null
    const int8_t* offsets;       // the same shape, or null
    const uint16_t* offset_scales;  // f16 [rows, columns / offset_span]
    const float* row_scales;     // [rows], where `scales` is null

    size_t row_bytes() const { return columns * (bits == 5 ? 4 : bits) / 8; }  // of values
};

struct Matrix {
    std::shared_ptr<Arena> arena;  // keeps what the pointers point to
    size_t rows, columns, blocks, bits, group, chunk, span, offset_span;  // as in `Source`
    size_t part;               // columns that share a scale of weights and one of activations
    int32_t zero;
    bool is_float;
    float offset_unit;
    uint8_t* values;           // [blocks, columns / 4, 64], as described above
    // Numbers of 16 rows stand next to each other: [blocks, ..., 16].
    uint16_t *scales, *zeros, *offset_scales;
    int8_t *factors, *offsets;
    float* row_scales;
    Functions functions;       // of as many tokens as their place, from 1 on
    // Of 5 or 6 bits that `unpack` made 8 for many tokens.
    BlockFunction unpacked = nullptr;
    void (*unpack)(const Matrix&, const uint8_t* weights, uint8_t* to) = nullptr;

    size_t groups() const { return columns / group; }
    size_t chunks() const { return columns / chunk; }
    size_t parts() const { return columns / part; }
    size_t block_bytes() const { return ROWS * columns * bits / 8; }
};

// Activations of all tokens, rounded. Those of as many tokens as a function takes at once are a tile, in which
// numbers of the same columns stand next to each other: rows of their own, thousands of bytes apart, would meet in
// the same few lines of the first cache.
struct Rounded {
    std::vector<int8_t> values;   // of a tile [columns / 4, tokens, 4]
    std::vector<float> scales;    // of a tile [chunks, tokens]
    std::vector<float> sums;      // of a tile [parts, tokens], of the rounded values
    std::vector<int32_t> starts;  // the same, times the zero point of all weights, negative

    void resize(size_t tokens, const Matrix& m) {
        values.resize(tokens * m.columns);
        scales.resize(tokens * m.chunks());
        sums.resize(tokens * m.parts());
        starts.resize(tokens * m.parts());
    }
};

// Ask for weights that come later; the processor's own prefetching ends with each 4 kB. With several tokens the products
// wait less for lines that were asked for early and stay in the second-level cache: on a fourth EPYC two tokens take
// 0.86 to 0.93 of the time, four 0.79 to 0.91, and one 1.12 to 1.15.
template <int TOKENS>
INLINE void prefetch(const uint8_t* weights) {
    if constexpr (TOKENS == 1)
        _mm_prefetch(reinterpret_cast<const char*>(weights + 2048), _MM_HINT_T0);
    else
        _mm_prefetch(reinterpret_cast<const char*>(weights + 8192), _MM_HINT_T1);
}

INLINE int32_t four(const int8_t* at) {
    int32_t value;
    std::memcpy(&value, at, 4);
    return value;
}

// Twice the floats of 4 bits (E2M1) by their codes, plus the zero point of all.
alignas(16) constexpr uint8_t FLOATS_OF_CODES[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

// What differs between matrices besides the bits: the zero point of all weights, one per group, or an offset per
// group next to the zero point of all; or values are codes of floats.
enum Kind { CONSTANT, ZEROS, OFFSETS, FLOATS };

// Where a function reads: one block of weights, and rounded activations from one token on.
struct Places {
    const uint8_t* weights;
    const uint16_t *scales, *zeros, *offset_scales;
    const int8_t *factors, *offsets, *values;
    const float *activation_scales, *sums;
    const int32_t* starts;

    Places(const Matrix& m, const Rounded& a, size_t token, size_t block, const uint8_t* values_of_block)
        : weights(values_of_block),
          scales(m.scales ? m.scales + block * (m.columns / m.span) * ROWS : nullptr),
          zeros(m.zeros ? m.zeros + block * m.groups() * ROWS : nullptr),
          offset_scales(m.offset_scales ? m.offset_scales + block * (m.columns / m.offset_span) * ROWS : nullptr),
          factors(m.factors ? m.factors + block * m.groups() * ROWS : nullptr),
          offsets(m.offsets ? m.offsets + block * m.groups() * ROWS : nullptr),
          values(a.values.data() + token * m.columns),
          activation_scales(a.scales.data() + token * m.chunks()),
          sums(a.sums.data() + token * m.parts()),
          starts(a.starts.data() + token * m.parts()) {}
};

// Quads of 5 or 6 bits that share registers, and bytes of those.
constexpr size_t quads_of(int bits) { return bits == 6 ? 4 : 8; }
constexpr size_t bytes_of_quads(int bits) { return quads_of(bits) * LINE * bits / 8; }

// Functions of each kind of matrix, with `Of::functions<BITS, KIND>`. None for what no model has: zero points of groups
// in 5 and 6 bits, 6 bits but in groups of 16 with factors, and offsets in 8.
template <typename Of>
Functions functions_of(const Matrix& m) {
    if (m.is_float) return Of::template functions<4, FLOATS>();
    if (m.bits == 4)
        return m.zeros     ? Of::template functions<4, ZEROS>()
               : m.offsets ? Of::template functions<4, OFFSETS>()
                           : Of::template functions<4, CONSTANT>();
    if (m.bits == 5)
        return m.zeros     ? Functions{}
               : m.offsets ? Of::template functions<5, OFFSETS>()
                           : Of::template functions<5, CONSTANT>();
    if (m.bits == 6)
        return m.zeros || !m.factors || m.group != 16 ? Functions{}
               : m.offsets                            ? Of::template functions<6, OFFSETS>()
                                                      : Of::template functions<6, CONSTANT>();
    return m.offsets ? Functions{}
           : m.zeros ? Of::template functions<8, ZEROS>()
                     : Of::template functions<8, CONSTANT>();
}

// products_avx512.cpp. Of 5 and 6 bits `unpacked` computes many tokens, with blocks that `unpack_block` made 8 bits.
Functions functions_avx512(const Matrix& m);
BlockFunction unpacked_avx512(const Matrix& m);
void unpack_block_avx512(const Matrix& m, const uint8_t* weights, uint8_t* to);

// products_avx2.cpp, the same.
Functions functions_avx2(const Matrix& m);
BlockFunction unpacked_avx2(const Matrix& m);
void unpack_block_avx2(const Matrix& m, const uint8_t* weights, uint8_t* to);
Functions functions_avx_vnni(const Matrix& m);  // products_avx_vnni.cpp

}  // namespace ovserve
