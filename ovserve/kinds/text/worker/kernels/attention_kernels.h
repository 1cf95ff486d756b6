// What the kernels of attention are given, and which there are. Three files compile them, each for other instructions.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace attention {

constexpr size_t BLOCK = 32;             // tokens of a block of the cache
constexpr size_t DECODE_PART = 512;      // tokens of a task: shorter ones wait for their first block too often
constexpr size_t MAX_SIZE = 256;         // of a head
constexpr size_t ROW_UNIT = 12;          // rows of a prompt's task are a multiple, for each TILE of the kernels
constexpr size_t MAX_ROWS = 384;         // of a task: their sums take 192 KB of size 128
constexpr size_t TASKS_OF_A_THREAD = 4;  // at least, as their lengths differ

// exp(x) = 2^n * exp(r), with ln 2 in two parts, and r by its series from the power 5 down.
constexpr float LOG2_E = 1.44269504f, LN_2_HIGH = 0.693359375f, LN_2_LOW = -2.12194440e-4f;
constexpr float EXPONENTIAL[] = {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};

struct Shape {
    size_t heads, kv_heads;
    size_t size, value_size;  // of a head of queries and keys, and of values
    float scale;
    size_t window;       // tokens that a query sees; 0: all
    const float* sinks;  // scores of each head that weigh nothing; null: none

    size_t group() const { return heads / kv_heads; }
};

// A token's context: the blocks that hold it, and which of its tokens are seen.
struct Context {
    const int32_t* blocks;
    size_t begin, end;  // tokens

    size_t first_part() const { return begin / DECODE_PART; }
    size_t parts() const { return (end + DECODE_PART - 1) / DECODE_PART - first_part(); }
};

// What a part gives for a head: the largest score, the sum of the exponentials, and the weighted values.
struct Partial {
    float largest, sum;
    float values[MAX_SIZE];
};

// Rows of a prompt are a token's heads, then the next token's. Of a row, `past` tokens and those up to its own are seen.
struct Rows {
    size_t begin, end, group, past, window;

    size_t seen_until(size_t row) const { return past + row / group + 1; }
    size_t seen_from(size_t row) const {
        const size_t until = seen_until(row);
        return window && until > window ? until - window : 0;
    }
};

struct Buffers {
    // Of a part, in factors: [block][factor of numbers][token], [panel][factor of tokens][number].
    std::vector<uint32_t> keys, values;
    std::vector<uint32_t> queries;       // [row][QUERY_STRIDE]
    std::vector<float> sums;             // [row][value_size]
    std::vector<float> largest, totals;  // [row]
};

struct Kernels {
    // Write `count` numbers into the cache.
    void (*round)(const float* from, size_t count, uint16_t* to);
    // Scale `count` numbers of queries, in the order that `decode` takes.
    void (*split_queries)(const float* from, float scale, size_t count, float* to);
    // One token, for the heads that share keys, over the tokens [begin, end) of a context: a partial of each.
    void (*decode)(const Shape&, const float* queries, const Context&, size_t begin, size_t end, const uint16_t* keys,
                   const uint16_t* values, size_t kv_head, Partial* to);
    // Add the parts of a head, `size` numbers of values, `stride` from one to the next. `sink`: of the head, or null.
    void (*merge)(const Partial* from, size_t stride, size_t parts, size_t size, const float* sink, float* to);
    // Rows of a prompt for a head of keys: `out` [row] is `value_size` numbers. Queries [token][heads * size] in f32.
    void (*prompt)(const Shape&, const Rows&, const int32_t* blocks, const float* queries, const uint16_t* keys,
                   const uint16_t* values, size_t kv_head, float* out, Buffers&);
};

Kernels kernels_avx2();         // attention_avx2.cpp
Kernels kernels_avx512();       // attention_avx512.cpp
Kernels kernels_avx512_bf16();  // attention_avx512_bf16.cpp

}  // namespace attention
