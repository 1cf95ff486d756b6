// Products with AVX-512 and VNNI.

#include "matrix.h"

namespace ovserve {
namespace {

AVX512 INLINE __m512 sixteen_f16(const uint16_t* at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}

AVX512 INLINE __m512 sixteen_i8(const int8_t* at) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))));
}

// Powers of two from their exponents (E8M0).
AVX512 INLINE __m512 sixteen_powers(const int8_t* at) {
    const __m512i exponents = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(exponents, 23));
}

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
AVX512 void unpack_block_of(const Matrix& m, const uint8_t* w, uint8_t* to) {
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
    const __m512i floats = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(FLOATS_OF_CODES)));
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
                if constexpr (KIND == FLOATS)
                    scale = sixteen_powers(from.factors + at);
                else if (from.factors)
                    scale = _mm512_mul_ps(sixteen_i8(from.factors + at), span_scale);
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
                    for (size_t at = 0; at < bytes_of_quads(BITS); at += LINE) prefetch<TOKENS>(w + at);
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
                    prefetch<TOKENS>(w);
                    w += 64;
                    if constexpr (BITS == 4) {
                        __m512i low = _mm512_and_si512(packed, nibble);
                        __m512i high = _mm512_and_si512(_mm512_srli_epi16(packed, 4), nibble);
                        if constexpr (KIND == FLOATS)
                            low = _mm512_shuffle_epi8(floats, low), high = _mm512_shuffle_epi8(floats, high);
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

struct Products512 {
    template <int BITS, Kind KIND>
    static Functions functions() {
        return {block_avx512<1, BITS, KIND>, block_avx512<2, BITS, KIND>, block_avx512<3, BITS, KIND>,
                block_avx512<4, BITS, KIND>, block_avx512<5, BITS, KIND>, block_avx512<6, BITS, KIND>,
                block_avx512<7, BITS, KIND>, block_avx512<8, BITS, KIND>};
    }
};

}  // namespace

Functions functions_avx512(const Matrix& m) {
    return functions_of<Products512>(m);
}

BlockFunction unpacked_avx512(const Matrix& m) {
    if (m.bits == 6) return m.offsets ? block_avx512<8, 6, OFFSETS, true> : block_avx512<8, 6, CONSTANT, true>;
    if (m.bits == 5) return m.offsets ? block_avx512<8, 8, OFFSETS> : block_avx512<8, 8, CONSTANT>;
    return nullptr;
}

void unpack_block_avx512(const Matrix& m, const uint8_t* weights, uint8_t* to) {
    (m.bits == 5 ? unpack_block_of<5> : unpack_block_of<6>)(m, weights, to);
}

}  // namespace ovserve
