// Sixteen numbers in a register: what attention needs of AVX-512.
//
// Factors of a product are 32 bits: two numbers in bf16 where a file defines BF16_PAIRS, else one in f32.

#pragma once

#ifdef BF16_PAIRS
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")))
#else
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma")))
#endif
#define INLINE TARGET __attribute__((always_inline)) inline

#include <immintrin.h>

#include "attention_kernels.h"

namespace attention {
namespace {

using Vector = __m512;

struct EvenOdd {
    Vector even, odd;
};

constexpr size_t LANES = 16;
constexpr size_t REGISTERS = 32;
constexpr size_t TILE = 12;  // rows of a prompt that are multiplied at once: 24 sums and 2 factors in registers

INLINE Vector all(float number) { return _mm512_set1_ps(number); }
INLINE Vector load(const float* from) { return _mm512_loadu_ps(from); }
INLINE void store(float* to, Vector numbers) { _mm512_storeu_ps(to, numbers); }
INLINE Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
INLINE Vector subtract(Vector a, Vector b) { return _mm512_sub_ps(a, b); }
INLINE Vector multiply(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
INLINE Vector divide(Vector a, Vector b) { return _mm512_div_ps(a, b); }
INLINE Vector multiply_add(Vector a, Vector b, Vector sum) { return _mm512_fmadd_ps(a, b, sum); }
INLINE Vector largest_of(Vector a, Vector b) { return _mm512_max_ps(a, b); }
INLINE float largest_in(Vector a) { return _mm512_reduce_max_ps(a); }
INLINE float sum_of(Vector a) { return _mm512_reduce_add_ps(a); }

// Numbers whose bit is set, else `otherwise`.
INLINE Vector keep(Vector numbers, uint32_t bits, float otherwise) {
    return _mm512_mask_mov_ps(all(otherwise), static_cast<__mmask16>(bits), numbers);
}

// To the nearest, ties to even; what is no number keeps a bit of its fraction.
INLINE void store_bf16(uint16_t* to, Vector numbers) {
    const __m512i bits = _mm512_castps_si512(numbers), high = _mm512_srli_epi32(bits, 16);
    const __m512i last = _mm512_and_si512(high, _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(last, _mm512_set1_epi32(0x7fff)));
    rounded = _mm512_srli_epi32(rounded, 16);
    const __mmask16 no_number = _mm512_cmp_ps_mask(numbers, numbers, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, no_number, high, _mm512_set1_epi32(64));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(rounded));
}

// exp(x) for x <= 0, within 2 units of the last bit.
INLINE Vector exponential(Vector x) {
    x = _mm512_max_ps(x, _mm512_set1_ps(-87.0f));
    const __m512 power = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(LOG2_E)), 0);
    __m512 rest = _mm512_fnmadd_ps(power, _mm512_set1_ps(LN_2_HIGH), x);
    rest = _mm512_fnmadd_ps(power, _mm512_set1_ps(LN_2_LOW), rest);
    __m512 sum = _mm512_set1_ps(1.0f / 720);
    for (float factor : EXPONENTIAL) sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(factor));
    return _mm512_scalef_ps(sum, power);
}

// The sum of each of LANES registers.
INLINE Vector sums_of(const Vector* rows) {
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
    const auto halves = [](__m512 a, __m512 b) TARGET __attribute__((always_inline)) {
        return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    };
    return halves(halves(fours[0], fours[1]), halves(fours[2], fours[3]));
}

// Of 2 * LANES numbers in bf16.
INLINE EvenOdd unpack(const uint16_t* from) {
    const __m512i both = _mm512_loadu_si512(from);
    return {_mm512_castsi512_ps(_mm512_slli_epi32(both, 16)),
            _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}

INLINE EvenOdd split(Vector a, Vector b) {
    const __m512i places = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return {_mm512_permutex2var_ps(a, places, b),
            _mm512_permutex2var_ps(a, _mm512_add_epi32(places, _mm512_set1_epi32(1)), b)};
}

INLINE void store_joined(float* to, EvenOdd numbers) {
    const __m512i places = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    store(to, _mm512_permutex2var_ps(numbers.even, places, numbers.odd));
    store(to + LANES,
          _mm512_permutex2var_ps(numbers.even, _mm512_add_epi32(places, _mm512_set1_epi32(8)), numbers.odd));
}

#ifdef BF16_PAIRS
constexpr size_t UNIT = 2;  // numbers of a factor

// Add `factor`, the same for all columns, times those of LANES columns.
INLINE Vector add_product(Vector sum, uint32_t factor, Vector columns) {
    return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(static_cast<int>(factor)), (__m512bh)columns);
}

// Factors of 2 * LANES numbers.
INLINE void store_factors(uint32_t* to, Vector low, Vector high) {
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

// LANES factors from numbers in bf16.
INLINE __m512i factors_of(const uint16_t* from) { return _mm512_loadu_si512(from); }

// Factors of LANES numbers of one token and of the next, which is null behind the last.
INLINE __m512i token_factors(const uint16_t* token, const uint16_t* next) {
    const auto half = [](const uint16_t* from) TARGET __attribute__((always_inline)) {
        return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    };
    const __m512i first = half(token);
    return next ? _mm512_or_si512(first, _mm512_slli_epi32(half(next), 16)) : first;
}
#else
constexpr size_t UNIT = 1;

INLINE Vector add_product(Vector sum, uint32_t factor, Vector columns) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(factor))), columns, sum);
}

INLINE void store_factors(uint32_t* to, Vector low, Vector high) {
    _mm512_storeu_si512(to, _mm512_castps_si512(low));
    _mm512_storeu_si512(to + LANES, _mm512_castps_si512(high));
}

INLINE __m512i factors_of(const uint16_t* from) {
    return _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))), 16);
}

INLINE __m512i token_factors(const uint16_t* token, const uint16_t*) { return factors_of(token); }
#endif

INLINE Vector load_factors(const uint32_t* from) { return _mm512_castsi512_ps(_mm512_loadu_si512(from)); }
INLINE void store_factors(uint32_t* to, __m512i factors) { _mm512_storeu_si512(to, factors); }

// Turn LANES rows of factors of numbers in bf16, `stride` numbers apart, into columns, `to_stride` apart.
INLINE void transpose(const uint16_t* from, size_t stride, uint32_t* to, size_t to_stride) {
    __m512i a[16], b[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) a[i] = factors_of(from + i * stride);
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
        _mm512_storeu_si512(to + i * to_stride, _mm512_shuffle_i32x4(b[i], b[i + 8], 0x88));
        _mm512_storeu_si512(to + (i + 8) * to_stride, _mm512_shuffle_i32x4(b[i], b[i + 8], 0xdd));
        _mm512_storeu_si512(to + (i + 4) * to_stride, _mm512_shuffle_i32x4(b[i + 4], b[i + 12], 0x88));
        _mm512_storeu_si512(to + (i + 12) * to_stride, _mm512_shuffle_i32x4(b[i + 4], b[i + 12], 0xdd));
    }
}

}  // namespace
}  // namespace attention
