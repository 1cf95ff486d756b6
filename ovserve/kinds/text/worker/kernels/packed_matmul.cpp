// Products of activations and weights in 4, 5, 6 or 8 bits, as an operation for OpenVINO's CPU plugin.
//
// The plugin's own kernels keep a second copy of the weights with scales in f32, in pages of 4 kB, and compute
// longer than they read where 32 weights share a scale. Here the weights lie in one order that every step reads
// from front to back, once, in huge pages. `library.py` compiles this file on the machine that uses it, and
// `matmul.py` describes the arrays that `ovserve_pack` takes.
//
// Order of the weights: 16 rows of the matrix are a block. Of a block, four neighbouring columns of all 16 rows
// are 64 numbers, one register: a quad. In 4 bits a byte holds two quads, the first in its low half. In 6 bits four
// quads take three registers: their low four bits so, and then their high two bits, the first quad's lowest. In 5 bits
// eight quads take five.
//
// A weight is `scale * (value - zero) + offset`. As in the files of llama.cpp, a scale may be a factor in 8 bits for
// each group of weights times a number in f16 for a span of groups, and an offset always is.
//
// An activation is rounded to int8 with one scale per chunk of 32 or 64 columns. The product of a chunk is exact
// in int32, and is scaled and added in f32.

#include <cpuid.h>
#include <immintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "attention.h"
#include "openvino/core/extension.hpp"
#include "openvino/core/op_extension.hpp"
#include "openvino/op/op.hpp"
#include "parallel.h"

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,fma"), flatten))
#define AVX2 __attribute__((target("avx2,f16c,fma"), flatten))
#define INLINE __attribute__((always_inline)) inline

namespace {

constexpr size_t ROWS = 16;            // of a block
constexpr size_t HUGE_PAGE = 2 << 20;  // bytes
constexpr size_t PAGE = 4096;          // bytes
constexpr size_t LINE = 64;            // bytes of a cache line
constexpr size_t PREFETCH = 2048;      // bytes ahead; the processor's own prefetching ends with each 4 kB
constexpr size_t CACHED_WEIGHTS = 512 << 10;  // bytes that a task keeps in the second-level cache
constexpr size_t UNPACKING_TOKENS = 32;  // from which on 5 and 6 bits become 8 once for all tokens of a step
constexpr size_t PACKED_AT_ONCE = 8 << 20;    // bytes of a file that is given back meanwhile

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
    float offset_unit;
    uint8_t* values;           // [blocks, columns / 4, 64], as described above
    // Numbers of 16 rows stand next to each other: [blocks, ..., 16].
    uint16_t *scales, *zeros, *offset_scales;
    int8_t *factors, *offsets;
    float* row_scales;
    Functions functions;       // of as many tokens as their place, from 1 on
    BlockFunction unpacked = nullptr;  // of 5 or 6 bits that were made 8 for many tokens

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

// Chunks of a tile of tokens that begins with token `first`.
AVX2 void round_chunks(const Matrix& m, const float* in, size_t first, size_t tile, size_t begin, size_t end, Rounded& a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    const size_t parts_of_chunk = m.chunk / m.part;
    for (size_t t = 0; t < tile; ++t) {
        const float* from = in + (first + t) * m.columns;
        int8_t* to = a.values.data() + first * m.columns + 4 * t;
        size_t part = first * m.parts() + begin * parts_of_chunk * tile + t;
        size_t chunk = first * m.chunks() + begin * tile + t;
        for (size_t at = begin * m.chunk; at < end * m.chunk; chunk += tile) {
            __m256 most = _mm256_setzero_ps();
            for (size_t k = 0; k < m.chunk; k += 8)
                most = _mm256_max_ps(most, _mm256_andnot_ps(sign, _mm256_loadu_ps(from + at + k)));
            __m128 half = _mm_max_ps(_mm256_castps256_ps128(most), _mm256_extractf128_ps(most, 1));
            half = _mm_max_ps(half, _mm_movehl_ps(half, half));
            half = _mm_max_ss(half, _mm_shuffle_ps(half, half, 1));
            const float largest = _mm_cvtss_f32(half);
            a.scales[chunk] = largest / 127.0f;
            const __m256 inverse = _mm256_set1_ps(largest > 0 ? 127.0f / largest : 0.0f);
            for (const size_t end = at + m.chunk; at < end; part += tile) {
                __m256i sum = _mm256_setzero_si256();
                for (const size_t part_end = at + m.part; at < part_end; at += 16) {
                    const __m256i first = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(from + at), inverse));
                    const __m256i second = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(from + at + 8), inverse));
                    sum = _mm256_add_epi32(sum, _mm256_add_epi32(first, second));
                    // The pack works in halves.
                    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(first, second), 0xd8);
                    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
                    int32_t quads[4];
                    _mm_storeu_si128(reinterpret_cast<__m128i*>(quads), bytes);
                    for (size_t i = 0; i < 4; ++i) std::memcpy(to + (at + 4 * i) * tile, &quads[i], 4);
                }
                __m128i total = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
                total = _mm_add_epi32(total, _mm_shuffle_epi32(total, 0x4e));
                total = _mm_add_epi32(total, _mm_shuffle_epi32(total, 0xb1));
                const int32_t number = _mm_cvtsi128_si32(total);
                a.sums[part] = static_cast<float>(number);
                a.starts[part] = -m.zero * number;
            }
        }
    }
}

INLINE int32_t four(const int8_t* at) {
    int32_t value;
    std::memcpy(&value, at, 4);
    return value;
}

// What differs between matrices besides the bits: the zero point of all weights, one per group, or an offset per
// group next to the zero point of all.
enum Kind { CONSTANT, ZEROS, OFFSETS };

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

AVX512 INLINE __m512 sixteen_f16(const uint16_t* at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}

AVX512 INLINE __m512 sixteen_i8(const int8_t* at) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))));
}

// Quads of 5 or 6 bits that share registers, and bytes of those.
constexpr size_t quads_of(int bits) { return bits == 6 ? 4 : 8; }
constexpr size_t bytes_of_quads(int bits) { return quads_of(bits) * LINE * bits / 8; }

template <int BITS>
AVX512 INLINE void unpack_quads(const uint8_t* w, __m512i* quad) {
    constexpr int QUADS = quads_of(BITS), HIGH = BITS - 4;  // bits
    const __m512i nibble = _mm512_set1_epi8(15), top = _mm512_set1_epi8(BITS == 6 ? 0x30 : 0x10);
    const __m512i high = _mm512_loadu_si512(w + QUADS / 2 * LINE);
#pragma GCC unroll 8
    for (int i = 0; i < QUADS; ++i) {
        const __m512i both = _mm512_loadu_si512(w + i / 2 * LINE);
        const __m512i low = _mm512_and_si512(i % 2 ? _mm512_srli_epi16(both, 4) : both, nibble);
        const int right = HIGH * i - 4;
        const __m512i moved = right < 0 ? _mm512_slli_epi16(high, -right) : _mm512_srli_epi16(high, right);
        quad[i] = _mm512_ternarylogic_epi32(low, moved, top, 0xf8);  // first | second & third
    }
}

// A block of 5 or 6 bits as one of 8.
template <int BITS>
AVX512 void unpack_block(const Matrix& m, const uint8_t* w, uint8_t* to) {
    constexpr size_t QUADS = quads_of(BITS);
    for (size_t at = 0; at < m.columns; at += 4 * QUADS, w += bytes_of_quads(BITS)) {
        __m512i quad[QUADS];
        unpack_quads<BITS>(w, quad);
        for (size_t i = 0; i < QUADS; ++i, to += LINE) _mm512_storeu_si512(to, quad[i]);
    }
}

// TOKENS rows of activations, from `token` on, times one block of 16 rows of weights. UNPACKED: 6 bits are 8.
template <int TOKENS, int BITS, Kind KIND, bool UNPACKED = false>
AVX512 void block_avx512(const Matrix& m, const Rounded& a, size_t token, size_t block, const uint8_t* weights,
                         float* out, size_t stride) {
    constexpr size_t QUADS = quads_of(BITS);     // at once
    constexpr bool SPLIT = BITS == 6;            // chunks may have several parts
    constexpr int CHAINS = TOKENS <= 2 ? 2 : 1;  // a product waits for the one before it in its chain
    const size_t chunks = m.chunks();
    const size_t quads = m.part / 4, parts_of_group = m.group / m.part, parts_of_chunk = SPLIT ? m.chunk / m.part : 1;
    const Places from(m, a, token, block, weights);
    const uint8_t* w = from.weights;
    const size_t groups_of_span = m.span / m.group, groups_of_offset = m.offset_span / m.group;
    const __m512i nibble = _mm512_set1_epi8(15);
    __m512 total[TOKENS];
    for (int t = 0; t < TOKENS; ++t) total[t] = _mm512_setzero_ps();
    __m512 scale = _mm512_set1_ps(1), span_scale = scale, zero, offset, offset_scale = scale;
    size_t next_span = 0, next_offset = 0;  // groups
    for (size_t c = 0, p = 0, within = 0, g = 0; c < chunks; ++c) {
        __m512 scaled[TOKENS];  // of several parts
        for (int t = 0; t < TOKENS; ++t) scaled[t] = _mm512_setzero_ps();
        for (size_t end = p + parts_of_chunk; p < end; ++p) {
            if (within == 0) {
                const size_t at = g * ROWS;
                if (from.scales && g == next_span) {
                    scale = span_scale = sixteen_f16(from.scales + g / groups_of_span * ROWS);
                    next_span += groups_of_span;
                }
                if (from.factors) scale = _mm512_mul_ps(sixteen_i8(from.factors + at), span_scale);
                if constexpr (KIND == ZEROS) zero = sixteen_f16(from.zeros + at);
                if constexpr (KIND == OFFSETS) {
                    if (g == next_offset) {
                        offset_scale = _mm512_mul_ps(sixteen_f16(from.offset_scales + g / groups_of_offset * ROWS),
                                                     _mm512_set1_ps(m.offset_unit));
                        next_offset += groups_of_offset;
                    }
                    offset = _mm512_mul_ps(sixteen_i8(from.offsets + at), offset_scale);
                }
            }
            if (++within == parts_of_group) within = 0, ++g;
            __m512i sum[TOKENS * CHAINS];
            for (int t = 0; t < TOKENS; ++t) {
                if constexpr (CHAINS == 2) sum[2 * t + 1] = _mm512_setzero_si512();
                sum[t * CHAINS] =
                    KIND == ZEROS ? _mm512_setzero_si512() : _mm512_set1_epi32(from.starts[p * TOKENS + t]);
            }
            const int8_t* k = from.values + p * m.part * TOKENS;
            for (size_t q = 0; q < quads; q += QUADS, k += 4 * QUADS * TOKENS) {
                if constexpr ((BITS == 5 || BITS == 6) && !UNPACKED) {
                    __m512i quad[QUADS];
                    unpack_quads<BITS>(w, quad);
                    for (size_t at = 0; at < bytes_of_quads(BITS); at += LINE)
                        _mm_prefetch(reinterpret_cast<const char*>(w + at + PREFETCH), _MM_HINT_T0);
                    w += bytes_of_quads(BITS);
#pragma GCC unroll 8
                    for (size_t i = 0; i < QUADS; ++i)
                        for (int t = 0; t < TOKENS; ++t) {
                            __m512i& chain = sum[t * CHAINS + i % CHAINS];
                            chain = _mm512_dpbusd_epi32(chain, quad[i], _mm512_set1_epi32(four(k + 4 * (i * TOKENS + t))));
                        }
                    continue;
                }
#pragma GCC unroll 8
                for (size_t i = 0; i < (BITS == 4 ? QUADS / 2 : QUADS); ++i) {
                    const __m512i packed = _mm512_loadu_si512(w);
                    _mm_prefetch(reinterpret_cast<const char*>(w + PREFETCH), _MM_HINT_T0);
                    w += 64;
                    if constexpr (BITS == 4) {
                        const __m512i low = _mm512_and_si512(packed, nibble);
                        const __m512i high = _mm512_and_si512(_mm512_srli_epi16(packed, 4), nibble);
                        for (int t = 0; t < TOKENS; ++t) {
                            const int8_t* four_of = k + 4 * (2 * i * TOKENS + t);
                            __m512i &first = sum[t * CHAINS], &second = sum[t * CHAINS + CHAINS - 1];
                            first = _mm512_dpbusd_epi32(first, low, _mm512_set1_epi32(four(four_of)));
                            second = _mm512_dpbusd_epi32(second, high, _mm512_set1_epi32(four(four_of + 4 * TOKENS)));
                        }
                    } else {
                        for (int t = 0; t < TOKENS; ++t) {
                            __m512i& chain = sum[t * CHAINS + i % CHAINS];
                            const __m512i activations = _mm512_set1_epi32(four(k + 4 * (i * TOKENS + t)));
                            chain = _mm512_dpbusd_epi32(chain, packed, activations);
                        }
                    }
                }
            }
            for (int t = 0; t < TOKENS; ++t) {
                if constexpr (CHAINS == 2) sum[2 * t] = _mm512_add_epi32(sum[2 * t], sum[2 * t + 1]);
                __m512 product = _mm512_cvtepi32_ps(sum[t * CHAINS]);
                const float* activations = from.sums + p * TOKENS + t;
                if constexpr (KIND == ZEROS) product = _mm512_fnmadd_ps(zero, _mm512_set1_ps(*activations), product);
                scaled[t] = SPLIT ? _mm512_fmadd_ps(product, scale, scaled[t]) : _mm512_mul_ps(product, scale);
                if constexpr (KIND == OFFSETS)
                    scaled[t] = _mm512_fmadd_ps(offset, _mm512_set1_ps(*activations), scaled[t]);
                if constexpr (!SPLIT)
                    total[t] = _mm512_fmadd_ps(scaled[t], _mm512_set1_ps(from.activation_scales[c * TOKENS + t]), total[t]);
            }
        }
        for (int t = 0; SPLIT && t < TOKENS; ++t)
            total[t] = _mm512_fmadd_ps(scaled[t], _mm512_set1_ps(from.activation_scales[c * TOKENS + t]), total[t]);
    }
    const size_t left = m.rows - block * ROWS;
    const __mmask16 mask = left >= ROWS ? 0xffff : static_cast<__mmask16>((1u << left) - 1);
    for (int t = 0; t < TOKENS; ++t) {
        if (!from.scales) total[t] = _mm512_mul_ps(total[t], _mm512_loadu_ps(m.row_scales + block * ROWS));
        _mm512_mask_storeu_ps(out + t * stride + block * ROWS, mask, total[t]);
    }
}

// Add products of four unsigned and four signed bytes. As text, because the VEX form is an extension of its own
// (AVX-VNNI) that a template cannot ask for by a parameter. Tried as EVEX on Zen 4, on which the VEX form is missing.
#if __GNUC__ >= 11 || __clang_major__ >= 12
constexpr bool KNOWS_AVX_VNNI = true;
__attribute__((target("avx2,f16c,fma"))) INLINE void add_products(__m256i& sum, __m256i weights, __m256i activations) {
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(weights), "x"(activations));
}
#else  // older assemblers do not know the prefix
constexpr bool KNOWS_AVX_VNNI = false;
__attribute__((target("avx2,f16c,fma"))) INLINE void add_products(__m256i&, __m256i, __m256i) {}
#endif

// Add 16-bit sums now: the compiler would keep eight products to add them as a tree, and has no registers for that.
__attribute__((target("avx2,f16c,fma"))) INLINE void add_here(__m256i& sum, __m256i products) {
    sum = _mm256_add_epi16(sum, products);
    asm("" : "+x"(sum));
}

// The same with 256 bits. Without VNNI, eight products of 4 bits by 8 fit into 16 bits: 8 * 2 * 15 * 127 = 30,480;
// of 5 bits four: 4 * 2 * 31 * 127 = 31,496; of 6 bits two: 2 * 2 * 63 * 127 = 32,004; eight bits are computed as
// two numbers of four.
//
// Both halves of a block's rows are computed at once if there are registers, else one after the other, which reads
// from memory only during the first.
template <int TOKENS, int BITS, Kind KIND, bool VNNI>
AVX2 void block_avx2(const Matrix& m, const Rounded& a, size_t token, size_t block, const uint8_t* weights, float* out,
                     size_t stride) {
    constexpr int HALVES = TOKENS <= (BITS == 8 && !VNNI ? 2 : 4) ? 2 : 1;
    constexpr size_t QUADS = quads_of(BITS);  // at once
    constexpr bool SPLIT = BITS == 6;
    const size_t chunks = m.chunks();
    const size_t quads = m.part / 4, parts_of_group = m.group / m.part, parts_of_chunk = SPLIT ? m.chunk / m.part : 1;
    const size_t groups_of_span = m.span / m.group, groups_of_offset = m.offset_span / m.group;
    const Places from(m, a, token, block, weights);
    const __m256i nibble = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    for (size_t first_row = 0; first_row < ROWS; first_row += 8 * HALVES) {
        const uint8_t* w = from.weights + first_row * 4;
        __m256 total[HALVES][TOKENS], scaled[HALVES][TOKENS];  // `scaled`: of several parts
        __m256 scale[HALVES], span_scale[HALVES], zero[HALVES], offset[HALVES], offset_scale[HALVES];
        for (int h = 0; h < HALVES; ++h) {
            scale[h] = span_scale[h] = offset_scale[h] = _mm256_set1_ps(1);
            for (int t = 0; t < TOKENS; ++t) total[h][t] = _mm256_setzero_ps();
        }
        size_t next_span = 0, next_offset = 0;  // groups
        const auto eight_f16 = [&](const uint16_t* at, int h) __attribute__((target("avx2,f16c,fma"))) {
            return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at + first_row + 8 * h)));
        };
        const auto eight_i8 = [&](const int8_t* at, int h) __attribute__((target("avx2,f16c,fma"))) {
            const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at + first_row + 8 * h));
            return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
        };
        const auto read = [](const uint8_t* at, int h) __attribute__((target("avx2,f16c,fma"))) {
            return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at) + h);
        };
        for (size_t c = 0, p = 0, within = 0, g = 0; c < chunks; ++c) {
            for (int h = 0; h < HALVES; ++h)
                for (int t = 0; t < TOKENS; ++t) scaled[h][t] = _mm256_setzero_ps();
            for (size_t end = p + parts_of_chunk; p < end; ++p) {
                if (within == 0) {
                    const size_t at = g * ROWS;
                    const bool begins_span = from.scales && g == next_span;
                    const bool begins_offset = KIND == OFFSETS && g == next_offset;
                    for (int h = 0; h < HALVES; ++h) {
                        if (begins_span) scale[h] = span_scale[h] = eight_f16(from.scales + g / groups_of_span * ROWS, h);
                        if (from.factors) scale[h] = _mm256_mul_ps(eight_i8(from.factors + at, h), span_scale[h]);
                        if constexpr (KIND == ZEROS) zero[h] = eight_f16(from.zeros + at, h);
                        if (begins_offset)
                            offset_scale[h] = _mm256_mul_ps(eight_f16(from.offset_scales + g / groups_of_offset * ROWS, h),
                                                            _mm256_set1_ps(m.offset_unit));
                        if constexpr (KIND == OFFSETS)
                            offset[h] = _mm256_mul_ps(eight_i8(from.offsets + at, h), offset_scale[h]);
                    }
                    if (begins_span) next_span += groups_of_span;
                    if (begins_offset) next_offset += groups_of_offset;
                }
                if (++within == parts_of_group) within = 0, ++g;
                __m256i sum[HALVES][TOKENS];
                for (int t = 0; t < TOKENS; ++t)
                    for (int h = 0; h < HALVES; ++h)
                        sum[h][t] =
                            KIND == ZEROS ? _mm256_setzero_si256() : _mm256_set1_epi32(from.starts[p * TOKENS + t]);
                const int8_t* k = from.values + p * m.part * TOKENS;
                for (size_t q = 0; q < quads; q += QUADS, k += 4 * QUADS * TOKENS) {
                    if constexpr (BITS == 6) {
                        for (int h = 0; h < HALVES; ++h) {
                            const __m256i even = read(w, h), odd = read(w + LINE, h), high = read(w + 2 * LINE, h);
                            const __m256i top = _mm256_set1_epi8(0x30);
                            const auto six = [&](__m256i low, __m256i moved) __attribute__((target("avx2,f16c,fma"))) {
                                return _mm256_or_si256(_mm256_and_si256(low, nibble), _mm256_and_si256(moved, top));
                            };
                            const __m256i quad[4] = {six(even, _mm256_slli_epi16(high, 4)),
                                                     six(_mm256_srli_epi16(even, 4), _mm256_slli_epi16(high, 2)),
                                                     six(odd, high),
                                                     six(_mm256_srli_epi16(odd, 4), _mm256_srli_epi16(high, 2))};
                            for (int t = 0; t < TOKENS; ++t) {
                                const int8_t* sixteen = k + 4 * t;
                                for (int i = 0; i < 4; i += 2) {
                                    const __m256i first = _mm256_set1_epi32(four(sixteen + 4 * i * TOKENS));
                                    const __m256i second = _mm256_set1_epi32(four(sixteen + 4 * (i + 1) * TOKENS));
                                    if constexpr (VNNI) {
                                        add_products(sum[h][t], quad[i], first);
                                        add_products(sum[h][t], quad[i + 1], second);
                                    } else {
                                        const __m256i both = _mm256_add_epi16(_mm256_maddubs_epi16(quad[i], first),
                                                                              _mm256_maddubs_epi16(quad[i + 1], second));
                                        sum[h][t] = _mm256_add_epi32(sum[h][t], _mm256_madd_epi16(both, ones));
                                    }
                                }
                            }
                        }
                    } else if constexpr (BITS == 5) {
                        const __m256i fifth = _mm256_set1_epi8(0x10);
#pragma GCC unroll 2
                        for (int h = 0; h < HALVES; ++h) {
                            const __m256i high = read(w + 4 * LINE, h);
#pragma GCC unroll 2
                            for (int i = 0; i < 8; i += 4) {
                                __m256i products[TOKENS];
                                for (int t = 0; t < TOKENS; ++t) products[t] = _mm256_setzero_si256();
#pragma GCC unroll 4
                                for (int j = i; j < i + 4; ++j) {
                                    __m256i low = read(w + j / 2 * LINE, h);
                                    if (j % 2) low = _mm256_srli_epi16(low, 4);
                                    const __m256i moved =
                                        j < 4 ? _mm256_slli_epi16(high, 4 - j) : _mm256_srli_epi16(high, j - 4);
                                    const __m256i quad =
                                        _mm256_or_si256(_mm256_and_si256(low, nibble), _mm256_and_si256(moved, fifth));
                                    for (int t = 0; t < TOKENS; ++t) {
                                        const __m256i activations = _mm256_set1_epi32(four(k + 4 * (j * TOKENS + t)));
                                        if constexpr (VNNI)
                                            add_products(sum[h][t], quad, activations);
                                        else
                                            add_here(products[t], _mm256_maddubs_epi16(quad, activations));
                                    }
                                }
                                for (int t = 0; t < TOKENS && !VNNI; ++t)
                                    sum[h][t] = _mm256_add_epi32(sum[h][t], _mm256_madd_epi16(products[t], ones));
                            }
                        }
                    } else {
                        // Products of the low and, of 8 bits, the high four.
                        __m256i low16[HALVES][TOKENS], high16[HALVES][TOKENS];
                        for (int h = 0; h < HALVES; ++h)
                            for (int t = 0; t < TOKENS; ++t) low16[h][t] = high16[h][t] = _mm256_setzero_si256();
#pragma GCC unroll 8
                        for (size_t i = 0; i < (BITS == 4 ? QUADS / 2 : QUADS); ++i) {
                            const uint8_t* line = w + i * LINE;
                            const int8_t* of_quad = k + 4 * (BITS == 4 ? 2 : 1) * i * TOKENS;
                            __m256i packed[HALVES], low[HALVES], high[HALVES];
                            for (int h = 0; h < HALVES; ++h) {
                                packed[h] = read(line, h);
                                low[h] = _mm256_and_si256(packed[h], nibble);
                                high[h] = _mm256_and_si256(_mm256_srli_epi16(packed[h], 4), nibble);
                            }
                            // All tokens, then all again: a sum waits for its product before.
                            for (int t = 0; t < TOKENS; ++t) {
                                const __m256i activations = _mm256_set1_epi32(four(of_quad + 4 * t));
                                for (int h = 0; h < HALVES; ++h) {
                                    if constexpr (VNNI)
                                        add_products(sum[h][t], BITS == 4 ? low[h] : packed[h], activations);
                                    else
                                        add_here(low16[h][t], _mm256_maddubs_epi16(low[h], activations));
                                    if constexpr (BITS == 8 && !VNNI)
                                        add_here(high16[h][t], _mm256_maddubs_epi16(high[h], activations));
                                }
                            }
                            for (int t = 0; BITS == 4 && t < TOKENS; ++t) {
                                const __m256i activations = _mm256_set1_epi32(four(of_quad + 4 * (TOKENS + t)));
                                for (int h = 0; h < HALVES; ++h) {
                                    if constexpr (VNNI)
                                        add_products(sum[h][t], high[h], activations);
                                    else
                                        add_here(low16[h][t], _mm256_maddubs_epi16(high[h], activations));
                                }
                            }
                        }
                        for (int h = 0; h < HALVES; ++h) {
                            for (int t = 0; t < TOKENS && !VNNI; ++t) {
                                sum[h][t] = _mm256_add_epi32(sum[h][t], _mm256_madd_epi16(low16[h][t], ones));
                                if constexpr (BITS == 8) {
                                    const __m256i sixteenth = _mm256_madd_epi16(high16[h][t], ones);
                                    sum[h][t] = _mm256_add_epi32(sum[h][t], _mm256_slli_epi32(sixteenth, 4));
                                }
                            }
                        }
                    }
                    for (size_t at = 0; at < bytes_of_quads(BITS); at += LINE)
                        _mm_prefetch(reinterpret_cast<const char*>(w + at + PREFETCH), _MM_HINT_T0);
                    w += bytes_of_quads(BITS);
                }
                for (int t = 0; t < TOKENS; ++t) {
                    const float* activations = from.sums + p * TOKENS + t;
                    for (int h = 0; h < HALVES; ++h) {
                        __m256 product = _mm256_cvtepi32_ps(sum[h][t]);
                        if constexpr (KIND == ZEROS)
                            product = _mm256_fnmadd_ps(zero[h], _mm256_set1_ps(*activations), product);
                        scaled[h][t] =
                            SPLIT ? _mm256_fmadd_ps(product, scale[h], scaled[h][t]) : _mm256_mul_ps(product, scale[h]);
                        if constexpr (KIND == OFFSETS)
                            scaled[h][t] = _mm256_fmadd_ps(offset[h], _mm256_set1_ps(*activations), scaled[h][t]);
                        if constexpr (!SPLIT)
                            total[h][t] = _mm256_fmadd_ps(
                                scaled[h][t], _mm256_set1_ps(from.activation_scales[c * TOKENS + t]), total[h][t]);
                    }
                }
            }
            for (int t = 0; SPLIT && t < TOKENS; ++t)
                for (int h = 0; h < HALVES; ++h)
                    total[h][t] = _mm256_fmadd_ps(scaled[h][t], _mm256_set1_ps(from.activation_scales[c * TOKENS + t]),
                                                  total[h][t]);
        }
        for (int h = 0; h < HALVES; ++h) {
            const size_t first = block * ROWS + first_row + 8 * h;
            const size_t left = m.rows > first ? std::min<size_t>(8, m.rows - first) : 0;
            for (int t = 0; t < TOKENS; ++t) {
                if (!from.scales)
                    total[h][t] = _mm256_mul_ps(total[h][t], _mm256_loadu_ps(m.row_scales + first));
                float row[8];
                _mm256_storeu_ps(row, total[h][t]);
                std::memcpy(out + t * stride + first, row, left * sizeof(float));
            }
        }
    }
}

enum Instructions { AVX2_ALONE, AVX_VNNI, AVX512_VNNI };

// The processor's best, unless oneDNN's variable says less: to test and measure the others.
Instructions best_instructions() {
    const char* variable = std::getenv("ONEDNN_MAX_CPU_ISA");
    const std::string most = variable ? variable : "";
    if (most == "AVX2") return AVX2_ALONE;
    if (most != "AVX2_VNNI" && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return AVX512_VNNI;
    unsigned a = 0, b, c, d;
    const bool has_it = __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
    return has_it && KNOWS_AVX_VNNI ? AVX_VNNI : AVX2_ALONE;
}

// Of 4 bits four tokens by both halves are as fast as eight by one; of others that takes more registers.
template <int BITS, Kind KIND, bool VNNI>
Functions functions_of_256() {
    Functions all = {block_avx2<1, BITS, KIND, VNNI>, block_avx2<2, BITS, KIND, VNNI>, block_avx2<3, BITS, KIND, VNNI>,
                     block_avx2<4, BITS, KIND, VNNI>};
    if constexpr (BITS != 4)
        all.insert(all.end(), {block_avx2<5, BITS, KIND, VNNI>, block_avx2<6, BITS, KIND, VNNI>,
                               block_avx2<7, BITS, KIND, VNNI>, block_avx2<8, BITS, KIND, VNNI>});
    return all;
}

template <int BITS, Kind KIND>
Functions functions_of(Instructions instructions) {
    if (instructions == AVX512_VNNI)
        return {block_avx512<1, BITS, KIND>, block_avx512<2, BITS, KIND>, block_avx512<3, BITS, KIND>,
                block_avx512<4, BITS, KIND>, block_avx512<5, BITS, KIND>, block_avx512<6, BITS, KIND>,
                block_avx512<7, BITS, KIND>, block_avx512<8, BITS, KIND>};
    return instructions == AVX_VNNI ? functions_of_256<BITS, KIND, true>()
                                    : functions_of_256<BITS, KIND, false>();
}

// None for what no model has: zero points of groups in 5 and 6 bits, and offsets in 8.
Functions functions_of(const Matrix& m, Instructions instructions) {
    if (m.bits == 4)
        return m.zeros     ? functions_of<4, ZEROS>(instructions)
               : m.offsets ? functions_of<4, OFFSETS>(instructions)
                           : functions_of<4, CONSTANT>(instructions);
    if (m.bits == 5)
        return m.zeros     ? Functions{}
               : m.offsets ? functions_of<5, OFFSETS>(instructions)
                           : functions_of<5, CONSTANT>(instructions);
    if (m.bits == 6)
        return m.zeros     ? Functions{}
               : m.offsets ? functions_of<6, OFFSETS>(instructions)
                           : functions_of<6, CONSTANT>(instructions);
    return m.offsets ? Functions{}
           : m.zeros ? functions_of<8, ZEROS>(instructions)
                     : functions_of<8, CONSTANT>(instructions);
}

void multiply(const Matrix& m, const float* in, float* out, size_t tokens) {
    thread_local Rounded own;
    Rounded& a = own;  // the tasks below run in other threads, whose `own` is another
    a.resize(tokens, m);
    const size_t most = m.functions.size();  // tokens of a tile
    const auto round = [&](size_t first, size_t begin, size_t end) {
        round_chunks(m, in, first, std::min(most, tokens - first), begin, end, a);
    };
    if (tokens < 4) {
        round(0, 0, m.chunks());
    } else {  // in halves of a tile, because threads that write the tokens of one would write the same lines
        const size_t tiles = (tokens + most - 1) / most, middle = m.chunks() / 2;
        isolated_for(2 * tiles, 1, [&](const tbb::blocked_range<size_t>& range) {
            for (size_t half = range.begin(); half < range.end(); ++half)
                round(half / 2 * most, half % 2 ? middle : 0, half % 2 ? m.chunks() : middle);
        });
    }
    const size_t threads = static_cast<size_t>(std::max(1, tbb::this_task_arena::max_concurrency()));
    const BlockFunction unpacked = tokens < UNPACKING_TOKENS ? nullptr : m.unpacked;
    const size_t unpacked_bytes = ROWS * m.columns;
    // Blocks of a task: four tasks a thread even out what else runs on a core; more tokens read them again.
    size_t grain = std::max<size_t>(1, m.blocks / (4 * threads));
    if (tokens > most) grain = std::min(grain, std::max<size_t>(1, CACHED_WEIGHTS / m.block_bytes()));
    isolated_for(m.blocks, grain, [&](const tbb::blocked_range<size_t>& range) {
        thread_local std::vector<uint8_t> wide;
        const auto weights = [&](size_t block) { return m.values + block * m.block_bytes(); };
        if (unpacked) wide.resize((range.end() - range.begin()) * unpacked_bytes);
        for (size_t block = range.begin(); unpacked && block < range.end(); ++block)
            (m.bits == 5 ? unpack_block<5> : unpack_block<6>)(m, weights(block), wide.data() + (block - range.begin()) * unpacked_bytes);
        for (size_t token = 0, count; token < tokens; token += count) {
            count = std::min(most, tokens - token);
            for (size_t block = range.begin(); block < range.end(); ++block) {
                if (unpacked && count == most)
                    unpacked(m, a, token, block, wide.data() + (block - range.begin()) * unpacked_bytes,
                             out + token * m.rows, m.rows);
                else
                    m.functions[count - 1](m, a, token, block, weights(block), out + token * m.rows, m.rows);
            }
        }
    });
}

std::mutex lock;
std::unordered_map<int64_t, std::shared_ptr<Arena>> arenas;
std::unordered_map<int64_t, std::shared_ptr<Matrix>> matrices;
int64_t last_handle = 0;

class PackedMatMul : public ov::op::Op {
public:
    OPENVINO_OP("PackedMatMul", "ovserve");

    PackedMatMul() = default;
    PackedMatMul(const ov::Output<ov::Node>& input, std::shared_ptr<Matrix> matrix, int64_t handle)
        : Op({input}), m_matrix(std::move(matrix)), m_handle(handle) {
        constructor_validate_and_infer_types();
    }

    bool visit_attributes(ov::AttributeVisitor& visitor) override {
        visitor.on_attribute("handle", m_handle);
        return true;
    }

    void validate_and_infer_types() override {
        if (!m_matrix && m_handle) {
            const std::lock_guard<std::mutex> guard(lock);
            m_matrix = matrices.at(m_handle);
        }
        auto shape = get_input_partial_shape(0);
        if (m_matrix && shape.rank().is_static()) shape[shape.rank().get_length() - 1] = m_matrix->rows;
        set_output_type(0, ov::element::f32, shape);
    }

    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
        return std::make_shared<PackedMatMul>(inputs.at(0), m_matrix, m_handle);
    }

    bool has_evaluate() const override { return true; }

    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
        auto shape = inputs[0].get_shape();
        const size_t tokens = inputs[0].get_size() / m_matrix->columns;
        shape.back() = m_matrix->rows;
        outputs[0].set_shape(shape);
        if (tokens) multiply(*m_matrix, inputs[0].data<float>(), outputs[0].data<float>(), tokens);
        return true;
    }

private:
    std::shared_ptr<Matrix> m_matrix;
    int64_t m_handle = 0;
};

__attribute__((target("f16c"))) INLINE float from_f16(uint16_t number) {
    return _cvtsh_ss(number);
}

// A row of the matrix in f32.
AVX2 void unpack_row(const Matrix& m, size_t row, float* to) {
    const size_t block = row / ROWS, r = row % ROWS;
    const uint8_t* values = m.values + block * m.block_bytes() + r * 4;
    const auto at = [&](size_t column, size_t columns) {
        return (block * (m.columns / columns) + column / columns) * ROWS + r;
    };
    for (size_t first = 0; first < m.columns; first += m.group) {
        float scale = m.scales ? from_f16(m.scales[at(first, m.span)]) : m.row_scales[row];
        if (m.factors) scale *= m.factors[at(first, m.group)];
        const float zero = m.zeros ? from_f16(m.zeros[at(first, m.group)]) : static_cast<float>(m.zero);
        float offset = 0;
        if (m.offsets)
            offset = m.offsets[at(first, m.group)] * from_f16(m.offset_scales[at(first, m.offset_span)]) * m.offset_unit;
        for (size_t k = first; k < first + m.group; ++k) {
            const size_t quad = k / 4;
            unsigned value;
            if (m.bits == 8) {
                value = values[quad * LINE + k % 4];
            } else if (m.bits == 4) {
                value = values[quad / 2 * LINE + k % 4] >> 4 * (quad % 2) & 15;
            } else if (m.bits == 5) {
                const uint8_t* eight_quads = values + quad / 8 * 5 * LINE + k % 4;
                value = (eight_quads[quad % 8 / 2 * LINE] >> 4 * (quad % 2) & 15) |
                        (eight_quads[4 * LINE] >> quad % 8 & 1) << 4;
            } else {
                const uint8_t* sixteen = values + quad / 4 * 3 * LINE + k % 4;
                value = (sixteen[quad % 4 / 2 * LINE] >> 4 * (quad % 2) & 15) |
                        (sixteen[2 * LINE] >> 2 * (quad % 4) & 3) << 4;
            }
            to[k] = scale * (static_cast<float>(value) - zero) + offset;
        }
    }
}

// Rows of a matrix in f32 by their numbers, for tables of embeddings that are the output layer too.
class PackedLookup : public ov::op::Op {
public:
    OPENVINO_OP("PackedLookup", "ovserve");

    PackedLookup() = default;
    PackedLookup(const ov::Output<ov::Node>& rows, std::shared_ptr<Matrix> matrix, int64_t handle)
        : Op({rows}), m_matrix(std::move(matrix)), m_handle(handle) {
        constructor_validate_and_infer_types();
    }

    bool visit_attributes(ov::AttributeVisitor& visitor) override {
        visitor.on_attribute("handle", m_handle);
        return true;
    }

    void validate_and_infer_types() override {
        if (!m_matrix && m_handle) {
            const std::lock_guard<std::mutex> guard(lock);
            m_matrix = matrices.at(m_handle);
        }
        auto shape = get_input_partial_shape(0);
        if (m_matrix && shape.rank().is_static()) shape.push_back(m_matrix->columns);
        set_output_type(0, ov::element::f32, shape);
    }

    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
        return std::make_shared<PackedLookup>(inputs.at(0), m_matrix, m_handle);
    }

    bool has_evaluate() const override { return true; }

    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
        const Matrix& m = *m_matrix;
        auto shape = inputs[0].get_shape();
        shape.push_back(m.columns);
        outputs[0].set_shape(shape);
        const bool is_wide = inputs[0].get_element_type() == ov::element::i64;
        float* to = outputs[0].data<float>();
        isolated_for(inputs[0].get_size(), 8, [&](const tbb::blocked_range<size_t>& range) {
            for (size_t n = range.begin(); n < range.end(); ++n) {
                const int64_t row = is_wide ? inputs[0].data<int64_t>()[n] : inputs[0].data<int32_t>()[n];
                unpack_row(m, std::clamp<int64_t>(row, 0, m.rows - 1), to + n * m.columns);
            }
        });
        return true;
    }

private:
    std::shared_ptr<Matrix> m_matrix;
    int64_t m_handle = 0;
};

// Two quads of 4 bits, as bytes of which each holds a number of both.
INLINE uint32_t two_quads(uint32_t eight) {
    const auto spread = [](uint32_t quad) {
        quad = (quad | quad << 8) & 0x00ff00ff;
        return (quad | quad << 4) & 0x0f0f0f0f;
    };
    return spread(eight & 0xffff) | spread(eight >> 16) << 4;
}

// Twelve bytes of sixteen numbers in 6 bits, as OpenVINO has them: of four, the low halves in two bytes and the high
// bits in the third, the first number highest; but for the low halves of two, of which the first is high.
void pack_sixteen(const uint8_t* from, uint8_t* to) {
    for (size_t quad = 0; quad < 4; ++quad, from += 3) {
        for (size_t j = 0; j < 4; ++j) {
            const unsigned low = j % 2 ? from[j / 2] & 15 : from[j / 2] >> 4;
            const unsigned high = from[2] >> (6 - 2 * j) & 3;
            to[quad / 2 * LINE + j] |= static_cast<uint8_t>(low << 4 * (quad % 2));
            to[2 * LINE + j] |= static_cast<uint8_t>(high << 2 * quad);
        }
    }
}

// Thirty-two numbers in 5 bits: sixteen bytes of low halves, and four of high bits.
void pack_thirty_two(const uint8_t* low, const uint8_t* high, uint8_t* to) {
    for (size_t k = 0; k < 4; ++k) {
        uint32_t word;
        std::memcpy(&word, low + 4 * k, 4);
        word = two_quads(word);
        std::memcpy(to + k * LINE, &word, 4);
    }
    for (size_t k = 0; k < 32; ++k) to[4 * LINE + k % 4] |= (high[k / 8] >> (7 - k % 8) & 1) << k / 4;
}

void pack_block(const Matrix& m, size_t block, const Source& source) {
    const size_t row_bytes = source.row_bytes(), rows = std::min(ROWS, m.rows - block * ROWS);
    const uint32_t flip = source.flip;
    uint8_t* to = m.values + block * m.block_bytes();
    for (size_t r = 0; r < rows; ++r) {
        const size_t row = block * ROWS + r;
        const uint8_t* from = source.values + row * row_bytes;
        if (m.bits == 5) {
            const uint8_t* high = source.high + row * (m.columns / 8);
            for (size_t k = 0; k < row_bytes; k += 16)
                pack_thirty_two(from + k, high + k / 4, to + k / 16 * 5 * LINE + r * 4);
            continue;
        }
        if (m.bits == 6) {
            for (size_t k = 0; k < row_bytes; k += 12) pack_sixteen(from + k, to + k * ROWS + r * 4);
            continue;
        }
        for (size_t k = 0; k < row_bytes; k += 4) {
            uint32_t word;
            std::memcpy(&word, from + k, 4);
            word ^= flip;
            word = m.bits == 4 ? two_quads(word) : word;
            std::memcpy(to + k * ROWS + r * 4, &word, 4);
        }
    }
}

// The numbers of rows, so that those of 16 rows stand next to each other. What is beyond the last row stays zero.
template <typename T>
void pack_numbers(const Matrix& m, size_t block, const T* from, size_t columns, T* to) {
    if (!from) return;
    const size_t numbers = m.columns / columns, rows = std::min(ROWS, m.rows - block * ROWS);
    for (size_t r = 0; r < rows; ++r)
        for (size_t n = 0; n < numbers; ++n)
            to[(block * numbers + n) * ROWS + r] = from[(block * ROWS + r) * numbers + n];
}

// Pack blocks of rows, and give back the pages of the file that they were in.
void pack_blocks(const Matrix& m, const Source& source, size_t begin, size_t end) {
    tbb::parallel_for(begin, end, [&](size_t block) {
        pack_block(m, block, source);
        pack_numbers(m, block, source.scales, m.span, m.scales);
        pack_numbers(m, block, source.factors, m.group, m.factors);
        pack_numbers(m, block, source.zeros, m.group, m.zeros);
        pack_numbers(m, block, source.offsets, m.group, m.offsets);
        pack_numbers(m, block, source.offset_scales, m.offset_span, m.offset_scales);
        pack_numbers(m, block, source.row_scales, m.columns, m.row_scales);
    });
    if (!source.is_file) return;
    const size_t block_bytes = ROWS * source.row_bytes();
    const auto page = [&](size_t block) {
        const size_t at = std::min(block * block_bytes, m.rows * source.row_bytes());
        return (reinterpret_cast<uintptr_t>(source.values) + at) / PAGE * PAGE;
    };
    const uintptr_t first = begin ? page(begin) : page(0) + PAGE;  // others may be in the first page
    if (first < page(end)) madvise(reinterpret_cast<void*>(first), page(end) - first, MADV_DONTNEED);
}

}  // namespace

extern "C" {

int64_t ovserve_arena(size_t bytes) {
    try {
        const std::lock_guard<std::mutex> guard(lock);
        arenas[++last_handle] = std::make_shared<Arena>(bytes);
        return last_handle;
    } catch (const std::exception&) {
        return 0;
    }
}

// Copy a matrix into an arena. Return a handle, or 0 where the arena is full or no function knows the form.
int64_t ovserve_pack(int64_t arena_handle, const Source* from) {
    const Source& source = *from;
    auto made = std::make_shared<Matrix>();
    Matrix& m = *made;
    m.rows = source.rows, m.columns = source.columns, m.bits = source.bits, m.zero = source.zero;
    m.offset_unit = source.offset_unit;
    m.blocks = (m.rows + ROWS - 1) / ROWS;
    m.group = source.group, m.chunk = source.chunk, m.part = std::min(m.group, m.chunk);
    m.span = source.span, m.offset_span = source.offset_span;
    if (m.bits != 6 && m.part != m.chunk) return 0;
    bool fits = true;
    const auto take = [&](const auto* numbers, size_t columns, auto*& to) {
        using Number = std::remove_reference_t<decltype(*to)>;
        to = numbers ? reinterpret_cast<Number*>(m.arena->take(m.blocks * (m.columns / columns) * ROWS * sizeof(*to)))
                     : nullptr;
        fits &= !numbers || to;
    };
    {
        const std::lock_guard<std::mutex> guard(lock);
        m.arena = arenas.at(arena_handle);
        m.values = m.arena->take(m.blocks * m.block_bytes());
        take(source.scales, m.span, m.scales);
        take(source.factors, m.group, m.factors);
        take(source.zeros, m.group, m.zeros);
        take(source.offsets, m.group, m.offsets);
        take(source.offset_scales, m.offset_span, m.offset_scales);
        take(source.row_scales, m.columns, m.row_scales);
    }
    if (m.bits == 6 && best_instructions() == AVX512_VNNI)
        m.unpacked = m.offsets ? block_avx512<8, 6, OFFSETS, true> : block_avx512<8, 6, CONSTANT, true>;
    if (m.bits == 5 && best_instructions() == AVX512_VNNI)
        m.unpacked = m.offsets ? block_avx512<8, 8, OFFSETS> : block_avx512<8, 8, CONSTANT>;
    if ((m.bits == 5) != (source.high != nullptr)) return 0;
    m.functions = functions_of(m, best_instructions());
    if (!fits || !m.values || m.functions.empty()) return 0;
    const size_t step = source.is_file ? std::max<size_t>(1, PACKED_AT_ONCE / m.block_bytes()) : m.blocks;
    for (size_t block = 0; block < m.blocks; block += step)
        pack_blocks(m, source, block, std::min(m.blocks, block + step));
    const std::lock_guard<std::mutex> guard(lock);
    matrices[++last_handle] = made;
    return last_handle;
}

// Forget a handle of an arena or a matrix; operations that were made of it keep theirs.
void ovserve_release(int64_t handle) {
    const std::lock_guard<std::mutex> guard(lock);
    arenas.erase(handle);
    matrices.erase(handle);
}

// Multiply outside a model, for tests and benchmarks.
void ovserve_multiply(int64_t handle, const float* in, float* out, size_t tokens) {
    std::shared_ptr<Matrix> m;
    {
        const std::lock_guard<std::mutex> guard(lock);
        m = matrices.at(handle);
    }
    multiply(*m, in, out, tokens);
}

}  // extern "C"

OPENVINO_CREATE_EXTENSIONS(
    std::vector<ov::Extension::Ptr>({std::make_shared<ov::OpExtension<PackedMatMul>>(),
                                     std::make_shared<ov::OpExtension<PackedLookup>>(),
                                     std::make_shared<ov::OpExtension<attention::PagedAttention>>()}));
