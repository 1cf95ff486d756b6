// Attention of one token, over a paged KV cache in bf16: keys and values [blocks, kv_heads, 32, size].
//
// A task computes the heads that share keys, over DECODE_PART tokens of a context, in f32. Parts are added in order,
// so what a token gets does not depend on the other sequences of a step.
//
// Included behind the file that says what a register is, `lanes_256.h` or `lanes_512.h`.

#pragma once

#include <algorithm>
#include <cmath>

namespace attention {
namespace {

constexpr size_t PAIR = 2 * LANES;  // numbers of a head that are unpacked at once, in two registers

// Add the values of a block's tokens, times their weights: PAIRS * PAIR numbers of each.
template <int HEADS, int PAIRS>
TARGET __attribute__((flatten)) void add_values(const uint16_t* value, const uint16_t* next,
                                                const float (*weights)[BLOCK], size_t from, size_t until, size_t size,
                                                Partial* to, size_t at) {
    Vector even[HEADS][PAIRS], odd[HEADS][PAIRS];
    for (int h = 0; h < HEADS; ++h) {
        for (int p = 0; p < PAIRS; ++p) {
            even[h][p] = load(to[h].values + at + p * PAIR);
            odd[h][p] = load(to[h].values + at + p * PAIR + LANES);
        }
    }
    for (size_t t = from; t < until; ++t) {
        for (int p = 0; p < PAIRS; ++p) {
            const EvenOdd v = unpack(value + t * size + p * PAIR);
            _mm_prefetch(reinterpret_cast<const char*>(next + t * size + p * PAIR), _MM_HINT_T1);
            for (int h = 0; h < HEADS; ++h) {
                const Vector weight = all(weights[h][t]);
                even[h][p] = multiply_add(weight, v.even, even[h][p]);
                odd[h][p] = multiply_add(weight, v.odd, odd[h][p]);
            }
        }
    }
    for (int h = 0; h < HEADS; ++h) {
        for (int p = 0; p < PAIRS; ++p) {
            store(to[h].values + at + p * PAIR, even[h][p]);
            store(to[h].values + at + p * PAIR + LANES, odd[h][p]);
        }
    }
}

// Heads that share keys, over the tokens [begin, end) of a context; `begin` may be within a block.
// `queries` [HEADS, size], even numbers of each PAIR first, are scaled.
//
// A block of keys, then of values, stays in the first-level cache while it is read, and the next one is fetched
// meanwhile: nothing about the place of a block predicts that of the next for the processor.
template <int HEADS>
TARGET __attribute__((flatten)) void decode_heads(const Shape& shape, const float* queries, const Context& context,
                                                  size_t begin, size_t end, const uint16_t* keys,
                                                  const uint16_t* values, size_t kv_head, Partial* to) {
    const size_t size = shape.size, value_size = shape.value_size;
    const auto place = [&](size_t token, size_t size) {
        return (static_cast<size_t>(context.blocks[token / BLOCK]) * shape.kv_heads + kv_head) * BLOCK * size;
    };
    constexpr int FREE_PAIRS = REGISTERS * 3 / 4 / (2 * HEADS);  // as many registers as there are
    constexpr int WIDE = FREE_PAIRS < 4 ? FREE_PAIRS : 4;
    constexpr size_t PARTS = BLOCK / LANES;  // registers of a number for each token
    Vector sums[HEADS];
    for (int h = 0; h < HEADS; ++h) {
        to[h].largest = -INFINITY, sums[h] = all(0);
        std::fill_n(to[h].values, value_size, 0.0f);
    }
    for (size_t block = begin / BLOCK * BLOCK; block < end; block += BLOCK) {
        const size_t next = std::min(block + BLOCK, (end - 1) / BLOCK * BLOCK);
        const size_t from = block < begin ? begin - block : 0, until = std::min(BLOCK, end - block);
        alignas(64) float weights[HEADS][BLOCK];
        Vector products[HEADS][BLOCK];
        const uint16_t *key = keys + place(block, size), *ahead = keys + place(next, size);
        for (size_t t = 0; t < until; t += 2, key += 2 * size, ahead += 2 * size) {
            Vector first[HEADS], second[HEADS];
            for (int h = 0; h < HEADS; ++h) first[h] = second[h] = all(0);
            for (size_t at = 0; at < size; at += PAIR) {
                const EvenOdd one = unpack(key + at), other = unpack(key + size + at);
                _mm_prefetch(reinterpret_cast<const char*>(ahead + at), _MM_HINT_T1);
                _mm_prefetch(reinterpret_cast<const char*>(ahead + size + at), _MM_HINT_T1);
                for (int h = 0; h < HEADS; ++h) {
                    const Vector even = load(queries + h * size + at), odd = load(queries + h * size + at + LANES);
                    first[h] = multiply_add(odd, one.odd, multiply_add(even, one.even, first[h]));
                    second[h] = multiply_add(odd, other.odd, multiply_add(even, other.even, second[h]));
                }
            }
            for (int h = 0; h < HEADS; ++h) products[h][t] = first[h], products[h][t + 1] = second[h];
        }
        for (size_t t = (until + 1) / 2 * 2; t < BLOCK; ++t)
            for (int h = 0; h < HEADS; ++h) products[h][t] = all(0);
        // Places outside hold anything, also what is no number.
        const uint32_t seen = (until == BLOCK ? ~0u : (1u << until) - 1) & ~0u << from;
        for (int h = 0; h < HEADS; ++h) {
            Vector scores[PARTS];
            for (size_t p = 0; p < PARTS; ++p)
                scores[p] = keep(sums_of(products[h] + p * LANES), seen >> p * LANES, -INFINITY);
            Vector most = scores[0];
            for (size_t p = 1; p < PARTS; ++p) most = largest_of(most, scores[p]);
            const float largest = std::max(to[h].largest, largest_in(most));
            Vector sum = all(0);
            for (size_t p = 0; p < PARTS; ++p) {
                const Vector weight = exponential(subtract(scores[p], all(largest)));
                scores[p] = keep(weight, seen >> p * LANES, 0);
                store(weights[h] + p * LANES, scores[p]);
                sum = add(sum, scores[p]);
            }
            if (largest > to[h].largest) {  // what was added up counts less
                const Vector less = exponential(all(to[h].largest - largest));
                sums[h] = multiply(sums[h], less);
                for (size_t at = 0; at < value_size; at += LANES)
                    store(to[h].values + at, multiply(load(to[h].values + at), less));
                to[h].largest = largest;
            }
            sums[h] = add(sums[h], sum);
        }
        const uint16_t *value = values + place(block, value_size), *next_value = values + place(next, value_size);
        size_t at = 0;
        for (; at + WIDE * PAIR <= value_size; at += WIDE * PAIR)
            add_values<HEADS, WIDE>(value + at, next_value + at, weights, from, until, value_size, to, at);
        for (; at < value_size; at += PAIR)
            add_values<HEADS, 1>(value + at, next_value + at, weights, from, until, value_size, to, at);
    }
    for (int h = 0; h < HEADS; ++h) to[h].sum = sum_of(sums[h]);
}

void decode(const Shape& shape, const float* queries, const Context& context, size_t begin, size_t end,
            const uint16_t* keys, const uint16_t* values, size_t kv_head, Partial* to) {
    for (size_t left = shape.group(); left;) {
        const size_t heads = std::min<size_t>(left, 4);
        const auto function = heads == 4   ? decode_heads<4>
                              : heads == 3 ? decode_heads<3>
                              : heads == 2 ? decode_heads<2>
                                           : decode_heads<1>;
        function(shape, queries, context, begin, end, keys, values, kv_head, to);
        left -= heads, queries += heads * shape.size, to += heads;
    }
}

TARGET __attribute__((flatten)) void round_numbers(const float* from, size_t count, uint16_t* to) {
    for (size_t at = 0; at < count; at += LANES) store_bf16(to + at, load(from + at));
}

TARGET __attribute__((flatten)) void split_queries(const float* from, float scale, size_t count, float* to) {
    for (size_t at = 0; at < count; at += PAIR) {
        const EvenOdd numbers =
            split(multiply(load(from + at), all(scale)), multiply(load(from + at + LANES), all(scale)));
        store(to + at, numbers.even);
        store(to + at + LANES, numbers.odd);
    }
}

TARGET __attribute__((flatten)) void merge(const Partial* from, size_t stride, size_t parts, size_t size,
                                           const float* sink, float* to) {
    float largest = sink ? *sink : -INFINITY;
    for (size_t part = 0; part < parts; ++part) largest = std::max(largest, from[part * stride].largest);
    float sum = sink ? std::exp(*sink - largest) : 0;
    for (size_t part = 0; part < parts; ++part)
        sum += std::exp(from[part * stride].largest - largest) * from[part * stride].sum;
    for (size_t at = 0; at < size; at += PAIR) {
        EvenOdd total = {all(0), all(0)};
        for (size_t part = 0; part < parts; ++part) {
            const Partial& partial = from[part * stride];
            const Vector weight = all(std::exp(partial.largest - largest) / sum);
            total.even = multiply_add(weight, load(partial.values + at), total.even);
            total.odd = multiply_add(weight, load(partial.values + at + LANES), total.odd);
        }
        store_joined(to + at, total);
    }
}

}  // namespace
}  // namespace attention
