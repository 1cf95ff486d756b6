// Attention of prompts, many tokens of one sequence, over a paged KV cache in bf16.
//
// A task computes rows, a query of a head each, of the heads that share keys. It takes a context in parts: the keys
// and values of a part are packed into its buffers once, and stay in the second-level cache while all of its rows are
// multiplied with them. Products are of pairs in bf16, added in f32: queries and weights are rounded, keys and values
// are so in the cache. What a row gets does not depend on the other rows, nor on the tokens of a step.

#pragma once

#include "decode_attention.h"

namespace prompt_attention {

using decode_attention::BLOCK;
using decode_attention::LANES;
using decode_attention::MAX_SIZE;
using decode_attention::Shape;

#define PROMPT_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")))
#define PROMPT_INLINE PROMPT_TARGET __attribute__((always_inline)) inline

constexpr size_t PART = 512;             // tokens of a context that are packed at once, 256 KB of size 128
constexpr size_t TILE = 12;              // rows that are multiplied at once: 24 sums and 2 factors in registers
constexpr size_t PANEL = 2 * LANES;      // columns that they are multiplied with
constexpr size_t MAX_ROWS = 384;         // of a task: their sums take 192 KB of size 128
constexpr size_t TASKS_OF_A_THREAD = 4;  // at least, as their lengths differ
// Rows begin in other sets of the first-level cache.
constexpr size_t QUERY_STRIDE = MAX_SIZE / 2 + LANES, WEIGHT_STRIDE = PART / 2 + LANES;  // pairs

struct Buffers {
    // Of a part, in pairs: [block][pair of numbers][token], [panel][pair of tokens][number].
    std::vector<uint32_t> keys, values;
    std::vector<uint32_t> queries;       // [row][QUERY_STRIDE]
    std::vector<float> sums;             // [row][size]
    std::vector<float> largest, totals;  // [row]
};

// Rows are a token's heads, then the next token's. Of a row, `past` tokens and those up to its own are seen.
struct Rows {
    size_t begin, end, group, past, window;

    size_t seen_until(size_t row) const { return past + row / group + 1; }
    size_t seen_from(size_t row) const {
        const size_t until = seen_until(row);
        return window && until > window ? until - window : 0;
    }
};

// Add `count` pairs of each row of `a`, STRIDE from one to the next, times those of 32 columns.
template <size_t STRIDE>
PROMPT_INLINE void multiply(const uint32_t* a, const uint32_t* b, size_t count, __m512 (*sums)[2]) {
    for (size_t i = 0; i < count; ++i, ++a, b += PANEL) {
        const __m512bh low = (__m512bh)_mm512_loadu_si512(b), high = (__m512bh)_mm512_loadu_si512(b + LANES);
#pragma GCC unroll 12
        for (size_t r = 0; r < TILE; ++r) {
            const __m512bh pair = (__m512bh)_mm512_set1_epi32(static_cast<int>(a[r * STRIDE]));
            sums[r][0] = _mm512_dpbf16_ps(sums[r][0], pair, low);
            sums[r][1] = _mm512_dpbf16_ps(sums[r][1], pair, high);
        }
    }
}

// Turn 16 rows of 16 pairs, `stride` pairs apart, into columns, PANEL apart.
PROMPT_INLINE void transpose(const uint32_t* from, size_t stride, uint32_t* to) {
    __m512i a[16], b[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_si512(from + i * stride);
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {  // a[i + 4 * j]: columns i, i + 4, i + 8, i + 12 of rows 4 j to 4 j + 3
        b[i] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0x88);
        b[i + 4] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd);
        b[i + 8] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88);
        b[i + 12] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xdd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        _mm512_storeu_si512(to + i * PANEL, _mm512_shuffle_i32x4(b[i], b[i + 8], 0x88));
        _mm512_storeu_si512(to + (i + 8) * PANEL, _mm512_shuffle_i32x4(b[i], b[i + 8], 0xdd));
        _mm512_storeu_si512(to + (i + 4) * PANEL, _mm512_shuffle_i32x4(b[i + 4], b[i + 12], 0x88));
        _mm512_storeu_si512(to + (i + 12) * PANEL, _mm512_shuffle_i32x4(b[i + 4], b[i + 12], 0xdd));
    }
}

// Pack a block of keys, [32][size].
PROMPT_INLINE void pack_keys(const uint16_t* keys, size_t size, uint32_t* to) {
    const uint32_t* pairs = reinterpret_cast<const uint32_t*>(keys);
    for (size_t at = 0; at < size / 2; at += LANES)
        for (size_t half = 0; half < PANEL; half += LANES)
            transpose(pairs + half * (size / 2) + at, size / 2, to + at * PANEL + half);
}

// Pack a block of values, [32][size], into panels `stride` apart. Places behind `tokens` hold anything, also what is
// no number, so they become zero.
PROMPT_INLINE void pack_values(const uint16_t* values, size_t size, size_t tokens, uint32_t* to, size_t stride) {
    const auto half = [&](size_t token, size_t at) PROMPT_TARGET {
        const auto* from = reinterpret_cast<const __m256i*>(values + token * size + at);
        return token < tokens ? _mm512_cvtepu16_epi32(_mm256_loadu_si256(from)) : _mm512_setzero_si512();
    };
    for (size_t token = 0; token < BLOCK; token += 2)
        for (size_t at = 0; at < size; at += LANES) {
            const __m512i pair = _mm512_or_si512(half(token, at), _mm512_slli_epi32(half(token + 1, at), 16));
            _mm512_storeu_si512(to + at / PANEL * stride + token / 2 * PANEL + at % PANEL, pair);
        }
}

// Turn the scores of a row, of tokens [start, start + count), into weights in pairs. Return by what the sums of the
// row's earlier parts are to be multiplied.
PROMPT_INLINE float weigh(const float* scores, size_t start, size_t count, size_t from, size_t until, float& largest,
                          float& total, uint32_t* weights) {
    const __m512i places = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i first = _mm512_set1_epi32(static_cast<int>(from)), last = _mm512_set1_epi32(static_cast<int>(until));
    const auto seen = [&](size_t at) PROMPT_TARGET {
        const __m512i tokens = _mm512_add_epi32(places, _mm512_set1_epi32(static_cast<int>(start + at)));
        return _mm512_cmplt_epi32_mask(tokens, last) & _mm512_cmpge_epi32_mask(tokens, first);
    };
    __m512 most = _mm512_set1_ps(-INFINITY);
    for (size_t at = 0; at < count; at += LANES)
        most = _mm512_mask_max_ps(most, seen(at), most, _mm512_loadu_ps(scores + at));
    const float before = largest;
    largest = std::max(before, _mm512_reduce_max_ps(most));
    most = _mm512_set1_ps(largest);
    __m512 sum = _mm512_setzero_ps();
    for (size_t at = 0; at < count; at += PANEL) {
        __m512 part[2];
        for (size_t half = 0; half < 2; ++half) {
            const __m512 score = _mm512_loadu_ps(scores + at + half * LANES);
            const __m512 weight = decode_attention::exponential(_mm512_sub_ps(score, most));
            part[half] = _mm512_maskz_mov_ps(seen(at + half * LANES), weight);
            sum = _mm512_add_ps(sum, part[half]);
        }
        _mm512_storeu_si512(weights + at / 2, (__m512i)_mm512_cvtne2ps_pbh(part[1], part[0]));
    }
    const float less = largest > before ? std::exp(before - largest) : 1.0f;
    total = total * less + _mm512_reduce_add_ps(sum);
    return less;
}

// Compute rows of a head of keys: `out` [row] is `size` numbers. Queries [token][heads * size] in f32.
PROMPT_TARGET __attribute__((flatten)) inline void attend(const Shape& shape, const Rows& rows, const int32_t* blocks,
                                                          const float* queries, const uint16_t* keys,
                                                          const uint16_t* values, size_t kv_head, float* out,
                                                          Buffers& own) {
    const size_t size = shape.size, count = rows.end - rows.begin, tiles = (count + TILE - 1) / TILE;
    const size_t context = rows.seen_until(rows.end - 1), start = rows.seen_from(rows.begin) / PART * PART;
    const size_t block_keys = size / 2 * PANEL, panel_values = PART / 2 * PANEL;
    own.keys.resize(PART / BLOCK * block_keys), own.values.resize(size / PANEL * panel_values);
    own.queries.resize(tiles * TILE * QUERY_STRIDE), own.sums.assign(tiles * TILE * size, 0.0f);
    own.largest.assign(tiles * TILE, -INFINITY), own.totals.assign(tiles * TILE, 0.0f);
    const auto place = [&](size_t row) {  // of a row among queries and answers
        row += rows.begin;
        return (row / rows.group * shape.heads + kv_head * rows.group + row % rows.group) * size;
    };
    for (size_t row = 0; row < tiles * TILE; ++row)  // those behind the last are computed like it
        for (size_t at = 0; at < size; at += PANEL) {
            const float* from = queries + place(std::min(row, count - 1)) + at;
            const __m512 scale = _mm512_set1_ps(shape.scale);
            const __m512 low = _mm512_mul_ps(_mm512_loadu_ps(from), scale);
            const __m512 high = _mm512_mul_ps(_mm512_loadu_ps(from + LANES), scale);
            uint32_t* to = own.queries.data() + row * QUERY_STRIDE + at / 2;
            _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(high, low));
        }
    alignas(64) float scores[TILE][PART + LANES];
    alignas(64) uint32_t weights[TILE * WEIGHT_STRIDE];
    for (size_t part = start; part < context; part += PART) {
        const size_t until = std::min(part + PART, context);
        for (size_t token = part; token < until; token += BLOCK) {
            const size_t at = (static_cast<size_t>(blocks[token / BLOCK]) * shape.kv_heads + kv_head) * BLOCK * size;
            pack_keys(keys + at, size, own.keys.data() + (token - part) / BLOCK * block_keys);
            pack_values(values + at, size, until - token, own.values.data() + (token - part) / 2 * PANEL, panel_values);
        }
        for (size_t tile = 0; tile < tiles; ++tile) {
            const size_t first = rows.begin + tile * TILE, last = std::min(first + TILE, rows.end) - 1;
            if (rows.seen_until(last) <= part || rows.seen_from(first) >= until) continue;
            const size_t tokens = (std::min(rows.seen_until(last), until) - part + BLOCK - 1) / BLOCK * BLOCK;
            for (size_t token = 0; token < tokens; token += BLOCK) {
                __m512 products[TILE][2];
#pragma GCC unroll 12
                for (size_t r = 0; r < TILE; ++r) products[r][0] = products[r][1] = _mm512_setzero_ps();
                multiply<QUERY_STRIDE>(own.queries.data() + tile * TILE * QUERY_STRIDE,
                                       own.keys.data() + token / BLOCK * block_keys, size / 2, products);
#pragma GCC unroll 12
                for (size_t r = 0; r < TILE; ++r) {
                    _mm512_storeu_ps(scores[r] + token, products[r][0]);
                    _mm512_storeu_ps(scores[r] + token + LANES, products[r][1]);
                }
            }
            float less[TILE];
            for (size_t r = 0; r < TILE; ++r) {
                const size_t row = std::min(first + r, last), at = tile * TILE + r;
                less[r] = weigh(scores[r], part, tokens, rows.seen_from(row), rows.seen_until(row), own.largest[at],
                                own.totals[at], weights + r * WEIGHT_STRIDE);
            }
            for (size_t at = 0; at < size; at += PANEL) {
                float* to = own.sums.data() + tile * TILE * size + at;
                __m512 sums[TILE][2];
#pragma GCC unroll 12
                for (size_t r = 0; r < TILE; ++r)
                    for (size_t half = 0; half < 2; ++half) {
                        const __m512 sum = _mm512_loadu_ps(to + r * size + half * LANES);
                        sums[r][half] = _mm512_mul_ps(sum, _mm512_set1_ps(less[r]));
                    }
                multiply<WEIGHT_STRIDE>(weights, own.values.data() + at / PANEL * panel_values, tokens / 2, sums);
#pragma GCC unroll 12
                for (size_t r = 0; r < TILE; ++r)
                    for (size_t half = 0; half < 2; ++half)
                        _mm512_storeu_ps(to + r * size + half * LANES, sums[r][half]);
            }
        }
    }
    for (size_t row = 0; row < count; ++row)
        for (size_t at = 0; at < size; at += LANES) {
            const __m512 sum = _mm512_loadu_ps(own.sums.data() + row * size + at);
            _mm512_storeu_ps(out + place(row) + at, _mm512_div_ps(sum, _mm512_set1_ps(own.totals[row])));
        }
}

}  // namespace prompt_attention
