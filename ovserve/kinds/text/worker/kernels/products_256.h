// Products with 256 bits. Each of two files compiles its half of the functions, next to the other.

#pragma once

#include "matrix.h"

namespace ovserve {
namespace {

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

// TOKENS rows of activations, from `token` on, times one block. Without VNNI, eight products of 4 bits by 8 fit into
// 16 bits: 8 * 2 * 15 * 127 = 30,480; of 5 bits four: 4 * 2 * 31 * 127 = 31,496, and of floats, which are up to 24;
// eight bits are computed as two numbers of four. 6 bits come here with VNNI.
//
// Both halves of a block's rows are computed at once if there are registers, else one after the other, which reads
// from memory only during the first.
template <int TOKENS, int BITS, Kind KIND, bool VNNI>
AVX2 void block_256(const Matrix& m, const Rounded& a, size_t token, size_t block, const uint8_t* weights, float* out,
                     size_t stride) {
    constexpr int HALVES = TOKENS <= (BITS == 8 && !VNNI ? 2 : 4) ? 2 : 1;
    constexpr size_t QUADS = KIND == FLOATS ? 4 : quads_of(BITS);  // at once
    constexpr size_t BYTES = QUADS * LINE * BITS / 8;
    constexpr bool SPLIT = BITS == 6;
    const size_t chunks = m.chunks();
    const size_t quads = m.part / 4, parts_of_group = m.group / m.part, parts_of_chunk = SPLIT ? m.chunk / m.part : 1;
    const size_t groups_of_span = m.span / m.group, groups_of_offset = m.offset_span / m.group;
    const Places from(m, a, token, block, weights);
    const __m256i nibble = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    const __m256i floats =
        _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(FLOATS_OF_CODES)));
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
        const auto eight_powers = [&](const int8_t* at, int h) __attribute__((target("avx2,f16c,fma"))) {
            const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at + first_row + 8 * h));
            return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(bytes), 23));
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
                        if constexpr (KIND == FLOATS)
                            scale[h] = eight_powers(from.factors + at, h);
                        else if (from.factors)
                            scale[h] = _mm256_mul_ps(eight_i8(from.factors + at, h), span_scale[h]);
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
                                    add_products(sum[h][t], quad[i], first);
                                    add_products(sum[h][t], quad[i + 1], second);
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
                                if constexpr (KIND == FLOATS) {
                                    low[h] = _mm256_shuffle_epi8(floats, low[h]);
                                    high[h] = _mm256_shuffle_epi8(floats, high[h]);
                                }
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
                    for (size_t at = 0; at < BYTES; at += LINE) prefetch<TOKENS>(w + at);
                    w += BYTES;
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

// Of 4 bits four tokens by both halves are as fast as eight by one; of others that takes more registers.
template <bool VNNI>
struct Products256 {
    template <int BITS, Kind KIND>
    static Functions functions() {
        if constexpr (BITS == 6 && !VNNI) return {};  // all are K-quants
        Functions all = {block_256<1, BITS, KIND, VNNI>, block_256<2, BITS, KIND, VNNI>, block_256<3, BITS, KIND, VNNI>,
                         block_256<4, BITS, KIND, VNNI>};
        if constexpr (BITS != 4)
            all.insert(all.end(), {block_256<5, BITS, KIND, VNNI>, block_256<6, BITS, KIND, VNNI>,
                                   block_256<7, BITS, KIND, VNNI>, block_256<8, BITS, KIND, VNNI>});
        return all;
    }
};

}  // namespace
}  // namespace ovserve
