// Eight numbers in a register: what attention needs of AVX2. As `lanes_512.h`, with factors in f32.

#pragma once

#define TARGET __attribute__((target("avx2,fma")))
#define INLINE TARGET __attribute__((always_inline)) inline

#include <immintrin.h>

#include "attention_kernels.h"

namespace attention {
namespace {

using Vector = __m256;

struct EvenOdd {
    Vector even, odd;
};

constexpr size_t LANES = 8;
constexpr size_t REGISTERS = 16;
constexpr size_t TILE = 6;  // rows of a prompt that are multiplied at once: 12 sums and 3 factors in registers
constexpr size_t UNIT = 1;  // numbers of a factor

INLINE Vector all(float number) { return _mm256_set1_ps(number); }
INLINE Vector load(const float* from) { return _mm256_loadu_ps(from); }
INLINE void store(float* to, Vector numbers) { _mm256_storeu_ps(to, numbers); }
INLINE Vector add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
INLINE Vector subtract(Vector a, Vector b) { return _mm256_sub_ps(a, b); }
INLINE Vector multiply(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
INLINE Vector divide(Vector a, Vector b) { return _mm256_div_ps(a, b); }
INLINE Vector multiply_add(Vector a, Vector b, Vector sum) { return _mm256_fmadd_ps(a, b, sum); }
INLINE Vector largest_of(Vector a, Vector b) { return _mm256_max_ps(a, b); }

INLINE float largest_in(Vector a) {
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

INLINE float sum_of(Vector a) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

INLINE Vector keep(Vector numbers, uint32_t bits, float otherwise) {
    const __m256i own = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i set = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), own);
    return _mm256_blendv_ps(all(otherwise), numbers, _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, own)));
}

INLINE void store_bf16(uint16_t* to, Vector numbers) {
    const __m256i bits = _mm256_castps_si256(numbers), high = _mm256_srli_epi32(bits, 16);
    const __m256i last = _mm256_and_si256(high, _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(last, _mm256_set1_epi32(0x7fff)));
    rounded = _mm256_srli_epi32(rounded, 16);
    const __m256i no_number = _mm256_castps_si256(_mm256_cmp_ps(numbers, numbers, _CMP_UNORD_Q));
    rounded = _mm256_blendv_epi8(rounded, _mm256_or_si256(high, _mm256_set1_epi32(64)), no_number);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded, rounded), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(packed));
}

INLINE Vector exponential(Vector x) {
    x = _mm256_max_ps(x, _mm256_set1_ps(-87.0f));
    const __m256 power =
        _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(LOG2_E)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 rest = _mm256_fnmadd_ps(power, _mm256_set1_ps(LN_2_HIGH), x);
    rest = _mm256_fnmadd_ps(power, _mm256_set1_ps(LN_2_LOW), rest);
    __m256 sum = _mm256_set1_ps(1.0f / 720);
    for (float factor : EXPONENTIAL) sum = _mm256_fmadd_ps(sum, rest, _mm256_set1_ps(factor));
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(power), _mm256_set1_epi32(127));
    return _mm256_mul_ps(sum, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}

INLINE Vector sums_of(const Vector* rows) {
    const __m256 low = _mm256_hadd_ps(_mm256_hadd_ps(rows[0], rows[1]), _mm256_hadd_ps(rows[2], rows[3]));
    const __m256 high = _mm256_hadd_ps(_mm256_hadd_ps(rows[4], rows[5]), _mm256_hadd_ps(rows[6], rows[7]));
    return _mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31));
}

INLINE EvenOdd unpack(const uint16_t* from) {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(both, 16)),
            _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(static_cast<int>(0xffff0000u))))};
}

INLINE EvenOdd split(Vector a, Vector b) {
    const auto in_order = [](__m256 pairs) TARGET __attribute__((always_inline)) {
        return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(pairs), 0xd8));
    };
    return {in_order(_mm256_shuffle_ps(a, b, 0x88)), in_order(_mm256_shuffle_ps(a, b, 0xdd))};
}

INLINE void store_joined(float* to, EvenOdd numbers) {
    const __m256 low = _mm256_unpacklo_ps(numbers.even, numbers.odd);
    const __m256 high = _mm256_unpackhi_ps(numbers.even, numbers.odd);
    store(to, _mm256_permute2f128_ps(low, high, 0x20));
    store(to + LANES, _mm256_permute2f128_ps(low, high, 0x31));
}

INLINE Vector add_product(Vector sum, uint32_t factor, Vector columns) {
    return _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(factor))), columns, sum);
}

INLINE void store_factors(uint32_t* to, __m256i factors) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), factors);
}

INLINE void store_factors(uint32_t* to, Vector low, Vector high) {
    store_factors(to, _mm256_castps_si256(low));
    store_factors(to + LANES, _mm256_castps_si256(high));
}

INLINE Vector load_factors(const uint32_t* from) {
    return _mm256_castsi256_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

INLINE __m256i factors_of(const uint16_t* from) {
    return _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))), 16);
}

INLINE __m256i token_factors(const uint16_t* token, const uint16_t*) { return factors_of(token); }

INLINE void transpose(const uint16_t* from, size_t stride, uint32_t* to, size_t to_stride) {
    __m256 a[8], b[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) a[i] = _mm256_castsi256_ps(factors_of(from + i * stride));
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {  // a[i + j]: columns j and j + 4 of rows i to i + 3
        a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
        a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
        a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
        a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        store_factors(to + i * to_stride, _mm256_castps_si256(_mm256_permute2f128_ps(a[i], a[i + 4], 0x20)));
        store_factors(to + (i + 4) * to_stride, _mm256_castps_si256(_mm256_permute2f128_ps(a[i], a[i + 4], 0x31)));
    }
}

}  // namespace
}  // namespace attention
