// Products with 256 bits and without VNNI of weights in the form of llama.cpp's K-quants: factors in 8 bits of groups of
// 32 in 4 and 5 bits, with offsets, or of 16 in 6 bits, with or without, and numbers in f16 of spans.
//
// Sums in 16 bits are multiplied by the factors as they are added in pairs. So a chunk becomes floating-point once, and
// the numbers of a span multiply the sum of all its chunks.

#pragma once

#include "products_256.h"

namespace ovserve {
namespace {

constexpr size_t K_CHUNK = 32;  // columns

inline bool is_k_quant(const Matrix& m) {
    if (!m.scales || !m.factors || m.chunk != K_CHUNK || m.span % K_CHUNK) return false;
    if (m.offsets && (m.offset_span != m.span || m.zero)) return false;
    return m.bits == 6 ? m.group == 16 : m.bits < 6 && m.offsets && m.group == 32;
}

// Eight rows of a quad of a chunk, as 8 bits.
template <int BITS, bool UNPACKED>
AVX2 INLINE __m256i quad_of_chunk(const uint8_t* chunk, int quad, int half) {
    const auto line = [&](int number) __attribute__((target("avx2,f16c,fma"))) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(chunk + number * LINE) + half);
    };
    if constexpr (UNPACKED) return line(quad);
    constexpr int QUADS = quads_of(BITS), HIGH = BITS - 4;  // bits
    const int first = quad / QUADS * (QUADS * BITS / 8), place = quad % QUADS;
    __m256i low = line(first + place / 2);
    if (place % 2) low = _mm256_srli_epi16(low, 4);
    low = _mm256_and_si256(low, _mm256_set1_epi8(15));
    if constexpr (BITS == 4) return low;
    const __m256i high = line(first + QUADS / 2), top = _mm256_set1_epi8(BITS == 6 ? 0x30 : 0x10);
    const int right = HIGH * place - 4;
    const __m256i moved = right < 0 ? _mm256_slli_epi16(high, -right) : _mm256_srli_epi16(high, right);
    return _mm256_or_si256(low, _mm256_and_si256(moved, top));
}

// A block of 5 or 6 bits as one of 8.
template <int BITS>
AVX2 void unpack_k_quants(const Matrix& m, const uint8_t* w, uint8_t* to) {
    for (size_t c = 0; c < m.chunks(); ++c, w += BITS * LINE)
#pragma GCC unroll 8
        for (int quad = 0; quad < 8; ++quad, to += LINE)
            for (int h = 0; h < 2; ++h)
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(to) + h, quad_of_chunk<BITS, false>(w, quad, h));
}

template <int BITS, bool HAS_OFFSETS, int TOKENS, bool UNPACKED = false>
AVX2 void block_of_k_quants(const Matrix& m, const Rounded& a, size_t token, size_t block, const uint8_t* w, float* out,
                            size_t stride) {
    constexpr int GROUPS = BITS == 6 ? 2 : 1;                       // of a chunk
    constexpr int AT_ONCE = BITS == 4 ? 8 : BITS == 5 ? 4 : 2;      // quads whose products fit into 16 bits
    constexpr size_t BYTES = (UNPACKED ? 8 : BITS) * LINE;          // of a chunk
    const size_t chunks = m.span / K_CHUNK;
    const Places from(m, a, token, block, w);
    const __m256i twice = _mm256_set_epi8(13, 12, 13, 12, 9, 8, 9, 8, 5, 4, 5, 4, 1, 0, 1, 0,
                                          13, 12, 13, 12, 9, 8, 9, 8, 5, 4, 5, 4, 1, 0, 1, 0);
    const auto eight_i8 = [](const int8_t* at) __attribute__((target("avx2,f16c,fma"))) {
        return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)));
    };
    const auto eight_f16 = [](const uint16_t* at) __attribute__((target("avx2,f16c,fma"))) {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
    };
    __m256 total[2][TOKENS], scaled[2][TOKENS];
    for (int h = 0; h < 2; ++h)
        for (int t = 0; t < TOKENS; ++t) total[h][t] = scaled[h][t] = _mm256_setzero_ps();
    const int8_t *k = from.values, *factors = from.factors, *moves = HAS_OFFSETS ? from.offsets : from.factors;
    const float *activation_scales = from.activation_scales, *sums = from.sums;
    for (size_t s = 0; s < m.columns / m.span; ++s) {
        const auto add_span = [&](const uint16_t* numbers, float times) __attribute__((target("avx2,f16c,fma"))) {
            for (int h = 0; h < 2; ++h) {
                const __m256 number = _mm256_mul_ps(eight_f16(numbers + s * ROWS + 8 * h), _mm256_set1_ps(times));
                for (int t = 0; t < TOKENS; ++t) {
                    total[h][t] = _mm256_fmadd_ps(scaled[h][t], number, total[h][t]);
                    scaled[h][t] = _mm256_setzero_ps();
                }
            }
        };
        // Sums of activations times offsets, or times factors and the zero point.
        for (size_t g = 0; g < chunks * GROUPS; ++g, sums += TOKENS, moves += ROWS) {
            __m256 move[2];
            for (int h = 0; h < 2; ++h) move[h] = _mm256_cvtepi32_ps(eight_i8(moves + 8 * h));
            for (int t = 0; t < TOKENS; ++t) {
                const __m256 sum = _mm256_set1_ps(sums[t] * activation_scales[g / GROUPS * TOKENS + t]);
                for (int h = 0; h < 2; ++h) scaled[h][t] = _mm256_fmadd_ps(move[h], sum, scaled[h][t]);
            }
        }
        HAS_OFFSETS ? add_span(from.offset_scales, m.offset_unit) : add_span(from.scales, static_cast<float>(-m.zero));
        for (size_t c = 0; c < chunks; ++c) {
            __m256i sum[2][TOKENS];
#pragma GCC unroll 2
            for (int group = 0; group < GROUPS; ++group, factors += ROWS) {
                __m256i factor[2];
                for (int h = 0; h < 2; ++h) factor[h] = _mm256_shuffle_epi8(eight_i8(factors + 8 * h), twice);
#pragma GCC unroll 4
                for (int first = 8 / GROUPS * group; first < 8 / GROUPS * (group + 1); first += AT_ONCE) {
                    __m256i products[2][TOKENS];
#pragma GCC unroll 8
                    for (int quad = first; quad < first + AT_ONCE; ++quad) {
                        __m256i weights[2];
                        for (int h = 0; h < 2; ++h) weights[h] = quad_of_chunk<BITS, UNPACKED>(w, quad, h);
                        for (int t = 0; t < TOKENS; ++t) {
                            const __m256i activations = _mm256_set1_epi32(four(k + 4 * (quad * TOKENS + t)));
                            for (int h = 0; h < 2; ++h) {
                                const __m256i product = _mm256_maddubs_epi16(weights[h], activations);
                                if (quad == first)
                                    products[h][t] = product;
                                else
                                    add_here(products[h][t], product);
                            }
                        }
                    }
                    for (int t = 0; t < TOKENS; ++t)
                        for (int h = 0; h < 2; ++h) {
                            const __m256i more = _mm256_madd_epi16(products[h][t], factor[h]);
                            sum[h][t] = first ? _mm256_add_epi32(sum[h][t], more) : more;
                        }
                }
            }
            for (int t = 0; t < TOKENS; ++t) {
                const __m256 scale = _mm256_set1_ps(activation_scales[t]);
                for (int h = 0; h < 2; ++h)
                    scaled[h][t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[h][t]), scale, scaled[h][t]);
            }
            for (size_t at = 0; at < BYTES; at += LINE) prefetch<TOKENS>(w + at);
            w += BYTES, k += K_CHUNK * TOKENS, activation_scales += TOKENS;
        }
        add_span(from.scales, 1);
    }
    for (int h = 0; h < 2; ++h) {
        const size_t first = block * ROWS + 8 * h, left = m.rows > first ? std::min<size_t>(8, m.rows - first) : 0;
        for (int t = 0; t < TOKENS; ++t) {
            float row[8];
            _mm256_storeu_ps(row, total[h][t]);
            std::memcpy(out + t * stride + first, row, left * sizeof(float));
        }
    }
}

template <int BITS, bool HAS_OFFSETS>
Functions k_quants() {
    return {block_of_k_quants<BITS, HAS_OFFSETS, 1>, block_of_k_quants<BITS, HAS_OFFSETS, 2>,
            block_of_k_quants<BITS, HAS_OFFSETS, 3>, block_of_k_quants<BITS, HAS_OFFSETS, 4>};
}

}  // namespace
}  // namespace ovserve
