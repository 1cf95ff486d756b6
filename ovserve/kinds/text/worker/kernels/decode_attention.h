// Attention of one token, over a paged KV cache in bf16: keys and values [blocks, kv_heads, 32, size].
//
// A task computes the heads that share keys, over PART tokens of a context, in f32. Parts are added in order, so what
// a token gets does not depend on the other sequences of a step.

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace decode_attention {

#define ATTENTION_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma"), flatten))
#define ATTENTION_INLINE __attribute__((always_inline)) inline

constexpr size_t BLOCK = 32;  // tokens of a block of the cache
constexpr size_t PART = 512;  // tokens of a task: shorter ones wait for their first block too often
constexpr size_t LANES = 16;
constexpr size_t PAIR = 2 * LANES;  // numbers of a head that are unpacked at once, in two registers
constexpr size_t MAX_SIZE = 256;    // of a head

struct Shape {
    size_t heads, kv_heads, size;
    float scale;
    size_t window;  // tokens that a query sees; 0: all

    size_t group() const { return heads / kv_heads; }
};

// A token's context: the blocks that hold it, and which of its tokens are seen.
struct Context {
    const int32_t* blocks;
    size_t begin, end;  // tokens

    size_t first_part() const { return begin / PART; }
    size_t parts() const { return (end + PART - 1) / PART - first_part(); }
};

// What a part gives for a head: the largest score, the sum of the exponentials, and the weighted values.
struct Partial {
    float largest, sum;
    float values[MAX_SIZE];
};

// To the nearest, ties to even; what is no number keeps a bit of its fraction.
__attribute__((target("avx512f"))) ATTENTION_INLINE __m256i to_bf16(__m512 numbers) {
    const __m512i bits = _mm512_castps_si512(numbers), high = _mm512_srli_epi32(bits, 16);
    const __m512i last = _mm512_and_si512(high, _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(last, _mm512_set1_epi32(0x7fff)));
    rounded = _mm512_srli_epi32(rounded, 16);
    const __mmask16 no_number = _mm512_cmp_ps_mask(numbers, numbers, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(rounded, no_number, high, _mm512_set1_epi32(64)));
}

// exp(x) for x <= 0, within 2 units of the last bit.
__attribute__((target("avx512f"))) ATTENTION_INLINE __m512 exponential(__m512 x) {
    x = _mm512_max_ps(x, _mm512_set1_ps(-87.0f));
    const __m512 power = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 0);
    __m512 rest = _mm512_fnmadd_ps(power, _mm512_set1_ps(0.693359375f), x);  // ln 2 in two parts
    rest = _mm512_fnmadd_ps(power, _mm512_set1_ps(-2.12194440e-4f), rest);
    __m512 sum = _mm512_set1_ps(1.0f / 720);
    for (float factor : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
        sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(factor));
    return _mm512_scalef_ps(sum, power);
}

// The sum of each of 16 registers.
__attribute__((target("avx512f"))) ATTENTION_INLINE __m512 sums_of(const __m512* rows) {
    __m512 fours[4];
    for (int i = 0; i < 4; ++i) {
        __m512d pairs[2];
        for (int j = 0; j < 2; ++j) {
            const __m512 a = rows[4 * i + 2 * j], b = rows[4 * i + 2 * j + 1];
            pairs[j] = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
        }
        fours[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(pairs[0], pairs[1])),
                                 _mm512_castpd_ps(_mm512_unpackhi_pd(pairs[0], pairs[1])));
    }
    const auto halves = [](__m512 a, __m512 b) __attribute__((target("avx512f"), always_inline)) {
        return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    };
    return halves(halves(fours[0], fours[1]), halves(fours[2], fours[3]));
}

// Numbers of bf16, those at even places and those at odd ones.
struct Unpacked {
    __m512 even, odd;
};

__attribute__((target("avx512f"))) ATTENTION_INLINE Unpacked unpack(const uint16_t* from) {
    const __m512i both = _mm512_loadu_si512(from);
    return {_mm512_castsi512_ps(_mm512_slli_epi32(both, 16)),
            _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}

// Add the values of a block's tokens, times their weights: PAIRS * 32 numbers of each.
template <int HEADS, int PAIRS>
ATTENTION_AVX512 void add_values(const uint16_t* value, const uint16_t* next, const float (*weights)[BLOCK], size_t from,
                                 size_t until, size_t size, Partial* to, size_t at) {
    __m512 even[HEADS][PAIRS], odd[HEADS][PAIRS];
    for (int h = 0; h < HEADS; ++h) {
        for (int p = 0; p < PAIRS; ++p) {
            even[h][p] = _mm512_loadu_ps(to[h].values + at + p * PAIR);
            odd[h][p] = _mm512_loadu_ps(to[h].values + at + p * PAIR + LANES);
        }
    }
    for (size_t t = from; t < until; ++t) {
        for (int p = 0; p < PAIRS; ++p) {
            const Unpacked v = unpack(value + t * size + p * PAIR);
            _mm_prefetch(reinterpret_cast<const char*>(next + t * size + p * PAIR), _MM_HINT_T1);
            for (int h = 0; h < HEADS; ++h) {
                const __m512 weight = _mm512_set1_ps(weights[h][t]);
                even[h][p] = _mm512_fmadd_ps(weight, v.even, even[h][p]);
                odd[h][p] = _mm512_fmadd_ps(weight, v.odd, odd[h][p]);
            }
        }
    }
    for (int h = 0; h < HEADS; ++h) {
        for (int p = 0; p < PAIRS; ++p) {
            _mm512_storeu_ps(to[h].values + at + p * PAIR, even[h][p]);
            _mm512_storeu_ps(to[h].values + at + p * PAIR + LANES, odd[h][p]);
        }
    }
}

// Heads that share keys, over the tokens [begin, end) of a context; `begin` may be within a block.
// `queries` [HEADS, size], even numbers of each 32 first, are scaled.
//
// A block of keys, then of values, stays in the first-level cache while it is read, and the next one is fetched
// meanwhile: nothing about the place of a block predicts that of the next for the processor.
template <int HEADS>
ATTENTION_AVX512 void attend(const Shape& shape, const float* queries, const Context& context, size_t begin, size_t end,
                             const uint16_t* keys, const uint16_t* values, size_t kv_head, Partial* to) {
    const size_t size = shape.size;
    const auto place = [&](size_t token) {
        return (static_cast<size_t>(context.blocks[token / BLOCK]) * shape.kv_heads + kv_head) * BLOCK * size;
    };
    constexpr int WIDE = HEADS == 4 ? 3 : 4;  // as many registers as there are
    __m512 sums[HEADS];
    for (int h = 0; h < HEADS; ++h) {
        to[h].largest = -INFINITY, sums[h] = _mm512_setzero_ps();
        std::fill_n(to[h].values, size, 0.0f);
    }
    for (size_t block = begin / BLOCK * BLOCK; block < end; block += BLOCK) {
        const size_t next = std::min(block + BLOCK, (end - 1) / BLOCK * BLOCK);
        const size_t from = block < begin ? begin - block : 0, until = std::min(BLOCK, end - block);
        alignas(64) float weights[HEADS][BLOCK];
        __m512 products[HEADS][BLOCK];
        const uint16_t *key = keys + place(block), *ahead = keys + place(next);
        for (size_t t = 0; t < until; t += 2, key += 2 * size, ahead += 2 * size) {
            __m512 first[HEADS], second[HEADS];
            for (int h = 0; h < HEADS; ++h) first[h] = second[h] = _mm512_setzero_ps();
            for (size_t at = 0; at < size; at += PAIR) {
                const Unpacked one = unpack(key + at), other = unpack(key + size + at);
                _mm_prefetch(reinterpret_cast<const char*>(ahead + at), _MM_HINT_T1);
                _mm_prefetch(reinterpret_cast<const char*>(ahead + size + at), _MM_HINT_T1);
                for (int h = 0; h < HEADS; ++h) {
                    const __m512 even = _mm512_loadu_ps(queries + h * size + at);
                    const __m512 odd = _mm512_loadu_ps(queries + h * size + at + LANES);
                    first[h] = _mm512_fmadd_ps(odd, one.odd, _mm512_fmadd_ps(even, one.even, first[h]));
                    second[h] = _mm512_fmadd_ps(odd, other.odd, _mm512_fmadd_ps(even, other.even, second[h]));
                }
            }
            for (int h = 0; h < HEADS; ++h) products[h][t] = first[h], products[h][t + 1] = second[h];
        }
        for (size_t t = (until + 1) / 2 * 2; t < BLOCK; ++t)
            for (int h = 0; h < HEADS; ++h) products[h][t] = _mm512_setzero_ps();
        // Places outside hold anything, also what is no number.
        const uint32_t seen = (until == BLOCK ? ~0u : (1u << until) - 1) & ~0u << from;
        for (int h = 0; h < HEADS; ++h) {
            const __m512 none = _mm512_set1_ps(-INFINITY);
            const __m512 low = _mm512_mask_mov_ps(none, static_cast<__mmask16>(seen), sums_of(products[h]));
            const __m512 high = _mm512_mask_mov_ps(none, static_cast<__mmask16>(seen >> 16), sums_of(products[h] + LANES));
            const float largest = std::max(to[h].largest, _mm512_reduce_max_ps(_mm512_max_ps(low, high)));
            const __m512 most = _mm512_set1_ps(largest);
            const __m512 a = _mm512_maskz_mov_ps(static_cast<__mmask16>(seen), exponential(_mm512_sub_ps(low, most)));
            const __m512 b =
                _mm512_maskz_mov_ps(static_cast<__mmask16>(seen >> 16), exponential(_mm512_sub_ps(high, most)));
            _mm512_store_ps(weights[h], a);
            _mm512_store_ps(weights[h] + LANES, b);
            if (largest > to[h].largest) {  // what was added up counts less
                const __m512 less = exponential(_mm512_set1_ps(to[h].largest - largest));
                sums[h] = _mm512_mul_ps(sums[h], less);
                for (size_t at = 0; at < size; at += LANES)
                    _mm512_storeu_ps(to[h].values + at, _mm512_mul_ps(_mm512_loadu_ps(to[h].values + at), less));
                to[h].largest = largest;
            }
            sums[h] = _mm512_add_ps(sums[h], _mm512_add_ps(a, b));
        }
        const uint16_t *value = values + place(block), *next_value = values + place(next);
        size_t at = 0;
        for (; at + WIDE * PAIR <= size; at += WIDE * PAIR)
            add_values<HEADS, WIDE>(value + at, next_value + at, weights, from, until, size, to, at);
        for (; at < size; at += PAIR)
            add_values<HEADS, 1>(value + at, next_value + at, weights, from, until, size, to, at);
    }
    for (int h = 0; h < HEADS; ++h) to[h].sum = _mm512_reduce_add_ps(sums[h]);
}

inline void attend_group(const Shape& shape, const float* queries, const Context& context, size_t begin, size_t end,
                         const uint16_t* keys, const uint16_t* values, size_t kv_head, Partial* to) {
    for (size_t left = shape.group(); left;) {
        const size_t heads = std::min<size_t>(left, 4);
        const auto function = heads == 4 ? attend<4> : heads == 3 ? attend<3> : heads == 2 ? attend<2> : attend<1>;
        function(shape, queries, context, begin, end, keys, values, kv_head, to);
        left -= heads, queries += heads * shape.size, to += heads;
    }
}

// Scale the queries, and take the even numbers of each 32 before the odd ones.
ATTENTION_AVX512 inline void unpack_queries(const float* from, float scale, size_t count, float* to) {
    const __m512i places = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd_places = _mm512_add_epi32(places, _mm512_set1_epi32(1));
    for (size_t at = 0; at < count; at += PAIR) {
        const __m512 a = _mm512_mul_ps(_mm512_loadu_ps(from + at), _mm512_set1_ps(scale));
        const __m512 b = _mm512_mul_ps(_mm512_loadu_ps(from + at + LANES), _mm512_set1_ps(scale));
        _mm512_storeu_ps(to + at, _mm512_permutex2var_ps(a, places, b));
        _mm512_storeu_ps(to + at + LANES, _mm512_permutex2var_ps(a, odd_places, b));
    }
}

// Add the parts of a head, `stride` from one to the next, and put its numbers in order.
ATTENTION_AVX512 inline void merge(const Partial* from, size_t stride, size_t parts, size_t size, float* to) {
    float largest = -INFINITY, sum = 0;
    for (size_t part = 0; part < parts; ++part) largest = std::max(largest, from[part * stride].largest);
    for (size_t part = 0; part < parts; ++part)
        sum += std::exp(from[part * stride].largest - largest) * from[part * stride].sum;
    const __m512i places = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i higher_places = _mm512_add_epi32(places, _mm512_set1_epi32(8));
    for (size_t at = 0; at < size; at += PAIR) {
        __m512 even = _mm512_setzero_ps(), odd = even;
        for (size_t part = 0; part < parts; ++part) {
            const Partial& partial = from[part * stride];
            const __m512 weight = _mm512_set1_ps(std::exp(partial.largest - largest) / sum);
            even = _mm512_fmadd_ps(weight, _mm512_loadu_ps(partial.values + at), even);
            odd = _mm512_fmadd_ps(weight, _mm512_loadu_ps(partial.values + at + LANES), odd);
        }
        _mm512_storeu_ps(to + at, _mm512_permutex2var_ps(even, places, odd));
        _mm512_storeu_ps(to + at + LANES, _mm512_permutex2var_ps(even, higher_places, odd));
    }
}

}  // namespace decode_attention
