// Attention of prompts, many tokens of one sequence, over a paged KV cache in bf16.
//
// A task computes rows, a query of a head each, of the heads that share keys. It takes a context in parts: the keys
// and values of a part are packed into its buffers once, and stay in the second-level cache while all of its rows are
// multiplied with them. Where the processor multiplies in bf16, products are of pairs of numbers, added in f32, and
// queries and weights are rounded; else all is f32. What a row gets does not depend on the other rows, nor on the
// tokens of a step.

#pragma once

#include "decode_attention.h"

namespace attention {
namespace {

constexpr size_t PART = 256 * UNIT;  // tokens of a context that are packed at once: 256 KB of size 128
constexpr size_t PANEL = 2 * LANES;  // columns that rows are multiplied with
// Rows begin in other sets of the first-level cache.
constexpr size_t QUERY_STRIDE = MAX_SIZE / UNIT + LANES, WEIGHT_STRIDE = PART / UNIT + LANES;  // factors

static_assert(ROW_UNIT % TILE == 0 && MAX_ROWS % ROW_UNIT == 0 && BLOCK % PANEL == 0);

// Add `count` factors of each row of `a`, STRIDE from one to the next, times those of a panel.
template <size_t STRIDE>
INLINE void multiply_rows(const uint32_t* a, const uint32_t* b, size_t count, Vector (*sums)[2]) {
    for (size_t i = 0; i < count; ++i, ++a, b += PANEL) {
        const Vector low = load_factors(b), high = load_factors(b + LANES);
#pragma GCC unroll 12
        for (size_t r = 0; r < TILE; ++r) {
            sums[r][0] = add_product(sums[r][0], a[r * STRIDE], low);
            sums[r][1] = add_product(sums[r][1], a[r * STRIDE], high);
        }
    }
}

// Pack a block of keys, [32][size], into panels [size / UNIT][PANEL].
INLINE void pack_keys(const uint16_t* keys, size_t size, uint32_t* to) {
    for (size_t token = 0; token < BLOCK; token += LANES, keys += LANES * size)
        for (size_t at = 0; at < size / UNIT; at += LANES)
            transpose(keys + at * UNIT, size, to + token / PANEL * (size / UNIT * PANEL) + at * PANEL + token % PANEL,
                      PANEL);
}

// Pack a block of values, [32][size], into panels `stride` apart. Places behind `tokens` hold anything, also what is
// no number, so they become zero.
INLINE void pack_values(const uint16_t* values, size_t size, size_t tokens, uint32_t* to, size_t stride) {
    for (size_t token = 0; token < BLOCK; token += UNIT)
        for (size_t at = 0; at < size; at += LANES) {
            uint32_t* place = to + at / PANEL * stride + token / UNIT * PANEL + at % PANEL;
            const uint16_t* from = values + token * size + at;
            if (token < tokens)
                store_factors(place, token_factors(from, token + 1 < tokens ? from + size : nullptr));
            else
                std::fill_n(place, LANES, 0u);
        }
}

// Turn the scores of a row, of tokens [start, start + count), into weights. Return by what the sums of the row's
// earlier parts are to be multiplied.
INLINE float weigh(const float* scores, size_t start, size_t count, size_t from, size_t until, float& largest,
                   float& total, uint32_t* weights) {
    const size_t first = from > start ? from - start : 0, last = until > start ? until - start : 0;
    const auto seen = [&](size_t at) -> uint32_t {  // bits of LANES tokens
        const uint32_t before_last = last >= at + LANES ? ~0u : last > at ? (1u << (last - at)) - 1 : 0;
        return before_last & (first >= at + LANES ? 0 : first > at ? ~0u << (first - at) : ~0u);
    };
    Vector most = all(-INFINITY);
    for (size_t at = 0; at < count; at += LANES)
        most = largest_of(most, keep(load(scores + at), seen(at), -INFINITY));
    const float before = largest;
    largest = std::max(before, largest_in(most));
    Vector sum = all(0);
    for (size_t at = 0; at < count; at += PANEL) {
        Vector part[2];
        for (size_t half = 0; half < 2; ++half) {
            const Vector weight = exponential(subtract(load(scores + at + half * LANES), all(largest)));
            part[half] = keep(weight, seen(at + half * LANES), 0);
            sum = add(sum, part[half]);
        }
        store_factors(weights + at / UNIT, part[0], part[1]);
    }
    const float less = largest > before ? std::exp(before - largest) : 1.0f;
    total = total * less + sum_of(sum);
    return less;
}

TARGET __attribute__((flatten)) void prompt(const Shape& shape, const Rows& rows, const int32_t* blocks,
                                            const float* queries, const uint16_t* keys, const uint16_t* values,
                                            size_t kv_head, float* out, Buffers& own) {
    const size_t size = shape.size, value_size = shape.value_size, count = rows.end - rows.begin, tiles = (count + TILE - 1) / TILE;
    const size_t context = rows.seen_until(rows.end - 1), start = rows.seen_from(rows.begin) / PART * PART;
    const size_t panel_keys = size / UNIT * PANEL, panel_values = PART / UNIT * PANEL;
    own.keys.resize(PART / PANEL * panel_keys), own.values.resize(value_size / PANEL * panel_values);
    own.queries.resize(tiles * TILE * QUERY_STRIDE), own.sums.assign(tiles * TILE * value_size, 0.0f);
    own.largest.assign(tiles * TILE, -INFINITY), own.totals.assign(tiles * TILE, 0.0f);
    for (size_t row = 0; shape.sinks && row < count; ++row) {
        own.largest[row] = shape.sinks[kv_head * rows.group + (rows.begin + row) % rows.group];
        own.totals[row] = 1;
    }
    const auto place = [&](size_t row, size_t size) {  // of a row among queries or answers
        row += rows.begin;
        return (row / rows.group * shape.heads + kv_head * rows.group + row % rows.group) * size;
    };
    for (size_t row = 0; row < tiles * TILE; ++row)  // those behind the last are computed like it
        for (size_t at = 0; at < size; at += PANEL) {
            const float* from = queries + place(std::min(row, count - 1), size) + at;
            store_factors(own.queries.data() + row * QUERY_STRIDE + at / UNIT, multiply(load(from), all(shape.scale)),
                          multiply(load(from + LANES), all(shape.scale)));
        }
    alignas(64) float scores[TILE][PART + LANES];
    alignas(64) uint32_t weights[TILE * WEIGHT_STRIDE];
    for (size_t part = start; part < context; part += PART) {
        const size_t until = std::min(part + PART, context);
        for (size_t token = part; token < until; token += BLOCK) {
            const size_t at = (static_cast<size_t>(blocks[token / BLOCK]) * shape.kv_heads + kv_head) * BLOCK;
            pack_keys(keys + at * size, size, own.keys.data() + (token - part) / PANEL * panel_keys);
            pack_values(values + at * value_size, value_size, until - token, own.values.data() + (token - part) / UNIT * PANEL,
                        panel_values);
        }
        for (size_t tile = 0; tile < tiles; ++tile) {
            const size_t first = rows.begin + tile * TILE, last = std::min(first + TILE, rows.end) - 1;
            if (rows.seen_until(last) <= part || rows.seen_from(first) >= until) continue;
            const size_t tokens = (std::min(rows.seen_until(last), until) - part + BLOCK - 1) / BLOCK * BLOCK;
            for (size_t token = 0; token < tokens; token += PANEL) {
                Vector products[TILE][2];
#pragma GCC unroll 12
                for (size_t r = 0; r < TILE; ++r) products[r][0] = products[r][1] = all(0);
                multiply_rows<QUERY_STRIDE>(own.queries.data() + tile * TILE * QUERY_STRIDE,
                                            own.keys.data() + token / PANEL * panel_keys, size / UNIT, products);
#pragma GCC unroll 12
                for (size_t r = 0; r < TILE; ++r) {
                    store(scores[r] + token, products[r][0]);
                    store(scores[r] + token + LANES, products[r][1]);
                }
            }
            float less[TILE];
            for (size_t r = 0; r < TILE; ++r) {
                const size_t row = std::min(first + r, last), at = tile * TILE + r;
                less[r] = weigh(scores[r], part, tokens, rows.seen_from(row), rows.seen_until(row), own.largest[at],
                                own.totals[at], weights + r * WEIGHT_STRIDE);
            }
            for (size_t at = 0; at < value_size; at += PANEL) {
                float* to = own.sums.data() + tile * TILE * value_size + at;
                Vector sums[TILE][2];
#pragma GCC unroll 12
                for (size_t r = 0; r < TILE; ++r)
                    for (size_t half = 0; half < 2; ++half)
                        sums[r][half] = multiply(load(to + r * value_size + half * LANES), all(less[r]));
                multiply_rows<WEIGHT_STRIDE>(weights, own.values.data() + at / PANEL * panel_values, tokens / UNIT, sums);
#pragma GCC unroll 12
                for (size_t r = 0; r < TILE; ++r)
                    for (size_t half = 0; half < 2; ++half) store(to + r * value_size + half * LANES, sums[r][half]);
            }
        }
    }
    for (size_t row = 0; row < count; ++row)
        for (size_t at = 0; at < value_size; at += LANES)
            store(out + place(row, value_size) + at,
                  divide(load(own.sums.data() + row * value_size + at), all(own.totals[row])));
}

}  // namespace
}  // namespace attention
