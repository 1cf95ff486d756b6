// Products of activations and weights in 4, 5, 6 or 8 bits, as an operation for OpenVINO's CPU plugin.
//
// The plugin's own kernels keep a second copy of the weights with scales in f32, in pages of 4 kB, and compute
// longer than they read where 32 weights share a scale. Here the weights lie in one order that every step reads
// from front to back, once, in huge pages: see `matrix.h`. `library.py` compiles this on the machine that uses it, and
// `matmul.py` describes the arrays that `ovserve_pack` takes.

#include <cmath>
#include <mutex>
#include <unordered_map>

#include "attention.h"
#include "instructions.h"
#include "matrix.h"
#include "openvino/core/extension.hpp"
#include "openvino/core/op_extension.hpp"
#include "openvino/op/op.hpp"
#include "parallel.h"

namespace ovserve {
namespace {

constexpr size_t PAGE = 4096;                 // bytes
constexpr size_t CACHED_WEIGHTS = 512 << 10;  // bytes that a task keeps in the second-level cache
constexpr size_t UNPACKING_TOKENS = 32;       // from which on 5 and 6 bits become 8 once for all tokens of a step
constexpr size_t PACKED_AT_ONCE = 8 << 20;    // bytes of a file that is given back meanwhile

// Chunks of a tile of tokens that begins with token `first`. `places`: rows of `in`, or null for those in their order.
AVX2 void round_chunks(const Matrix& m, const float* in, const uint32_t* places, size_t first, size_t tile, size_t begin,
                       size_t end, Rounded& a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    const size_t parts_of_chunk = m.chunk / m.part;
    for (size_t t = 0; t < tile; ++t) {
        const float* from = in + (places ? places[first + t] : first + t) * m.columns;
        int8_t* to = a.values.data() + first * m.columns + 4 * t;
        size_t part = first * m.parts() + begin * parts_of_chunk * tile + t;
        size_t chunk = first * m.chunks() + begin * tile + t;
        for (size_t at = begin * m.chunk; at < end * m.chunk; chunk += tile) {
            __m256 most = _mm256_setzero_ps();
            for (size_t k = 0; k < m.chunk; k += 8)
                most = _mm256_max_ps(most, _mm256_andnot_ps(sign, _mm256_loadu_ps(from + at + k)));
            __m128 half = _mm_max_ps(_mm256_castps256_ps128(most), _mm256_extractf128_ps(most, 1));
            half = _mm_max_ps(half, _mm_movehl_ps(half, half));
            half = _mm_max_ss(half, _mm_shuffle_ps(half, half, 1));
            const float largest = _mm_cvtss_f32(half);
            a.scales[chunk] = largest / 127.0f;
            const __m256 inverse = _mm256_set1_ps(largest > 0 ? 127.0f / largest : 0.0f);
            for (const size_t end = at + m.chunk; at < end; part += tile) {
                __m256i sum = _mm256_setzero_si256();
                for (const size_t part_end = at + m.part; at < part_end; at += 16) {
                    const __m256i first = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(from + at), inverse));
                    const __m256i second = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(from + at + 8), inverse));
                    sum = _mm256_add_epi32(sum, _mm256_add_epi32(first, second));
                    // The pack works in halves.
                    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(first, second), 0xd8);
                    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
                    int32_t quads[4];
                    _mm_storeu_si128(reinterpret_cast<__m128i*>(quads), bytes);
                    for (size_t i = 0; i < 4; ++i) std::memcpy(to + (at + 4 * i) * tile, &quads[i], 4);
                }
                __m128i total = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
                total = _mm_add_epi32(total, _mm_shuffle_epi32(total, 0x4e));
                total = _mm_add_epi32(total, _mm_shuffle_epi32(total, 0xb1));
                const int32_t number = _mm_cvtsi128_si32(total);
                a.sums[part] = static_cast<float>(number);
                a.starts[part] = -m.zero * number;
            }
        }
    }
}

void multiply(const Matrix& m, const float* in, float* out, size_t tokens) {
    thread_local Rounded own;
    Rounded& a = own;  // the tasks below run in other threads, whose `own` is another
    a.resize(tokens, m);
    const size_t most = m.functions.size();  // tokens of a tile
    const auto round = [&](size_t first, size_t begin, size_t end) {
        round_chunks(m, in, nullptr, first, std::min(most, tokens - first), begin, end, a);
    };
    if (tokens < 4) {
        round(0, 0, m.chunks());
    } else {  // in halves of a tile, because threads that write the tokens of one would write the same lines
        const size_t tiles = (tokens + most - 1) / most, middle = m.chunks() / 2;
        isolated_for(2 * tiles, 1, [&](const tbb::blocked_range<size_t>& range) {
            for (size_t half = range.begin(); half < range.end(); ++half)
                round(half / 2 * most, half % 2 ? middle : 0, half % 2 ? m.chunks() : middle);
        });
    }
    const size_t threads = static_cast<size_t>(std::max(1, tbb::this_task_arena::max_concurrency()));
    const BlockFunction unpacked = tokens < UNPACKING_TOKENS ? nullptr : m.unpacked;
    const size_t unpacked_bytes = ROWS * m.columns, block_bytes = unpacked ? unpacked_bytes : m.block_bytes();
    // Blocks of a task. All threads wait for the one that has the last: with 16 tasks a thread a step of 3 B parameters
    // takes 0.95 to 0.96 of what it takes with 4, and one of SmolLM2 as long. More tokens read the blocks again.
    size_t grain = std::max<size_t>(1, m.blocks / (16 * threads));
    if (tokens > most) grain = std::min(grain, std::max<size_t>(1, CACHED_WEIGHTS / block_bytes));
    isolated_for(m.blocks, grain, [&](const tbb::blocked_range<size_t>& range) {
        thread_local std::vector<uint8_t> wide;
        const auto weights = [&](size_t block) { return m.values + block * m.block_bytes(); };
        if (unpacked) wide.resize((range.end() - range.begin()) * unpacked_bytes);
        for (size_t block = range.begin(); unpacked && block < range.end(); ++block)
            m.unpack(m, weights(block), wide.data() + (block - range.begin()) * unpacked_bytes);
        for (size_t token = 0, count; token < tokens; token += count) {
            count = std::min(most, tokens - token);
            for (size_t block = range.begin(); block < range.end(); ++block) {
                if (unpacked && count == most)
                    unpacked(m, a, token, block, wide.data() + (block - range.begin()) * unpacked_bytes,
                             out + token * m.rows, m.rows);
                else
                    m.functions[count - 1](m, a, token, block, weights(block), out + token * m.rows, m.rows);
            }
        }
    });
}

// Tokens in the order of their experts, and which of them an expert has.
struct Routing {
    std::vector<uint32_t> slots;  // of a token, `used` one after another
    std::vector<size_t> begins;   // the first of each expert that has tokens, and the end
    std::vector<size_t> experts;  // of these

    template <typename Number>
    Routing(const Number* ids, size_t count, size_t experts_of_layer) : slots(count) {
        std::vector<size_t> next(experts_of_layer + 1);
        const auto expert = [&](size_t slot) {
            return std::min(static_cast<size_t>(std::max<Number>(ids[slot], 0)), experts_of_layer - 1);
        };
        for (size_t slot = 0; slot < count; ++slot) ++next[expert(slot) + 1];
        for (size_t e = 0; e < experts_of_layer; ++e) {
            if (next[e + 1]) begins.push_back(next[e]), experts.push_back(e);
            next[e + 1] += next[e];
        }
        begins.push_back(count);
        for (size_t slot = 0; slot < count; ++slot) slots[next[expert(slot)]++] = static_cast<uint32_t>(slot);
    }
};

// Rows of a matrix of several experts, one below the other. `in` has a row for each `shared` slots, `out` one for each.
void multiply_experts(const Matrix& m, const float* in, float* out, const Routing& routing, size_t rows, size_t shared) {
    thread_local Rounded own;
    Rounded& a = own;  // as in `multiply`
    const size_t count = routing.slots.size(), most = m.functions.size(), blocks = rows / ROWS;
    a.resize(count, m);
    std::vector<uint32_t> places(routing.slots);
    for (uint32_t& place : places) place /= shared;
    struct Tile {
        size_t first, count;
    };
    std::vector<Tile> tiles;
    std::vector<size_t> tiles_of(1);  // of each expert, the first and the end
    for (size_t e = 0; e < routing.experts.size(); ++e) {
        for (size_t first = routing.begins[e]; first < routing.begins[e + 1]; first += most)
            tiles.push_back({first, std::min(most, routing.begins[e + 1] - first)});
        tiles_of.push_back(tiles.size());
    }
    isolated_for(tiles.size(), 1, [&](const tbb::blocked_range<size_t>& range) {
        for (size_t n = range.begin(); n < range.end(); ++n)
            round_chunks(m, in, places.data(), tiles[n].first, tiles[n].count, 0, m.chunks(), a);
    });
    const size_t threads = static_cast<size_t>(std::max(1, tbb::this_task_arena::max_concurrency()));
    const size_t total = routing.experts.size() * blocks;
    isolated_for(total, std::max<size_t>(1, total / (16 * threads)), [&](const tbb::blocked_range<size_t>& range) {
        thread_local std::vector<uint8_t> wide;
        thread_local std::vector<float> made;
        made.resize(most * ROWS);
        for (size_t n = range.begin(); n < range.end(); ++n) {
            const size_t e = n / blocks, within = n % blocks, block = routing.experts[e] * blocks + within;
            const uint8_t* weights = m.values + block * m.block_bytes();
            const bool unpacks = m.unpacked && routing.begins[e + 1] - routing.begins[e] >= UNPACKING_TOKENS;
            if (unpacks) {
                wide.resize(ROWS * m.columns);
                m.unpack(m, weights, wide.data());
            }
            for (size_t tile = tiles_of[e]; tile < tiles_of[e + 1]; ++tile) {
                const auto [first, tokens] = tiles[tile];
                float* to = made.data() - block * ROWS;  // functions write at the place of the block
                if (unpacks && tokens == most)
                    m.unpacked(m, a, first, block, wide.data(), to, ROWS);
                else
                    m.functions[tokens - 1](m, a, first, block, weights, to, ROWS);
                for (size_t t = 0; t < tokens; ++t)
                    std::memcpy(out + routing.slots[first + t] * rows + within * ROWS, made.data() + t * ROWS,
                                ROWS * sizeof(float));
            }
        }
    });
}

std::mutex lock;
std::unordered_map<int64_t, std::shared_ptr<Arena>> arenas;
std::unordered_map<int64_t, std::shared_ptr<Matrix>> matrices;
int64_t last_handle = 0;

// An operation with a matrix that `ovserve_pack` has made. Its output has the shape of one of its inputs, SHAPE_AT, with
// `Derived::size` numbers for the last dimension or, with APPENDS, as one more.
template <typename Derived>
class MatrixOperation : public ov::op::Op {
public:
    MatrixOperation() = default;
    MatrixOperation(const ov::OutputVector& inputs, std::shared_ptr<Matrix> matrix, int64_t handle, int64_t experts)
        : Op(inputs), m_matrix(std::move(matrix)), m_handle(handle), m_experts(experts) {
        constructor_validate_and_infer_types();
    }

    bool visit_attributes(ov::AttributeVisitor& visitor) override {
        visitor.on_attribute("handle", m_handle);
        visitor.on_attribute("experts", m_experts);
        return true;
    }

    void validate_and_infer_types() override {
        if (!m_matrix && m_handle) {
            const std::lock_guard<std::mutex> guard(lock);
            m_matrix = matrices.at(m_handle);
        }
        auto shape = get_input_partial_shape(Derived::SHAPE_AT);
        if (m_matrix && shape.rank().is_static()) shape = output_shape(shape);
        set_output_type(0, ov::element::f32, shape);
    }

    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
        return std::make_shared<Derived>(inputs, m_matrix, m_handle, m_experts);
    }

    bool has_evaluate() const override { return true; }

protected:
    template <typename Shape>
    Shape output_shape(Shape shape) const {
        const auto size = Derived::size(*m_matrix, m_experts);
        if (Derived::APPENDS)
            shape.push_back(size);
        else
            shape[shape.size() - 1] = size;
        return shape;
    }

    std::shared_ptr<Matrix> m_matrix;
    int64_t m_handle = 0, m_experts = 1;
};

class PackedMatMul : public MatrixOperation<PackedMatMul> {
public:
    OPENVINO_OP("PackedMatMul", "ovserve");
    using MatrixOperation::MatrixOperation;

    static constexpr size_t SHAPE_AT = 0;
    static constexpr bool APPENDS = false;
    static size_t size(const Matrix& m, int64_t) { return m.rows; }

    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
        outputs[0].set_shape(output_shape(inputs[0].get_shape()));
        const size_t tokens = inputs[0].get_size() / m_matrix->columns;
        if (tokens) multiply(*m_matrix, inputs[0].data<float>(), outputs[0].data<float>(), tokens);
        return true;
    }
};

// Products of activations, [tokens, columns] or [tokens, used, columns], with the experts of each token by their numbers,
// [tokens, used]: [tokens, used, rows of an expert].
class PackedExperts : public MatrixOperation<PackedExperts> {
public:
    OPENVINO_OP("PackedExperts", "ovserve");
    using MatrixOperation::MatrixOperation;

    static constexpr size_t SHAPE_AT = 1;
    static constexpr bool APPENDS = true;
    static size_t size(const Matrix& m, int64_t experts) { return m.rows / experts; }

    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
        const size_t slots = inputs[1].get_size();
        outputs[0].set_shape(output_shape(inputs[1].get_shape()));
        if (!slots) return true;
        const Routing routing = inputs[1].get_element_type() == ov::element::i64
                                    ? Routing(inputs[1].data<int64_t>(), slots, m_experts)
                                    : Routing(inputs[1].data<int32_t>(), slots, m_experts);
        const size_t shared = slots / (inputs[0].get_size() / m_matrix->columns);
        multiply_experts(*m_matrix, inputs[0].data<float>(), outputs[0].data<float>(), routing,
                         size(*m_matrix, m_experts), shared);
        return true;
    }
};

__attribute__((target("f16c"))) INLINE float from_f16(uint16_t number) {
    return _cvtsh_ss(number);
}

// A row of the matrix in f32.
AVX2 void unpack_row(const Matrix& m, size_t row, float* to) {
    const size_t block = row / ROWS, r = row % ROWS;
    const uint8_t* values = m.values + block * m.block_bytes() + r * 4;
    const auto at = [&](size_t column, size_t columns) {
        return (block * (m.columns / columns) + column / columns) * ROWS + r;
    };
    for (size_t first = 0; first < m.columns; first += m.group) {
        float scale = m.scales ? from_f16(m.scales[at(first, m.span)]) : m.row_scales[row];
        if (m.is_float)
            scale *= std::ldexp(1.0f, static_cast<uint8_t>(m.factors[at(first, m.group)]) - 127);
        else if (m.factors)
            scale *= m.factors[at(first, m.group)];
        const float zero = m.zeros ? from_f16(m.zeros[at(first, m.group)]) : static_cast<float>(m.zero);
        float offset = 0;
        if (m.offsets)
            offset = m.offsets[at(first, m.group)] * from_f16(m.offset_scales[at(first, m.offset_span)]) * m.offset_unit;
        for (size_t k = first; k < first + m.group; ++k) {
            const size_t quad = k / 4;
            unsigned value;
            if (m.bits == 8) {
                value = values[quad * LINE + k % 4];
            } else if (m.bits == 4) {
                value = values[quad / 2 * LINE + k % 4] >> 4 * (quad % 2) & 15;
                if (m.is_float) value = FLOATS_OF_CODES[value];
            } else if (m.bits == 5) {
                const uint8_t* eight_quads = values + quad / 8 * 5 * LINE + k % 4;
                value = (eight_quads[quad % 8 / 2 * LINE] >> 4 * (quad % 2) & 15) |
                        (eight_quads[4 * LINE] >> quad % 8 & 1) << 4;
            } else {
                const uint8_t* sixteen = values + quad / 4 * 3 * LINE + k % 4;
                value = (sixteen[quad % 4 / 2 * LINE] >> 4 * (quad % 2) & 15) |
                        (sixteen[2 * LINE] >> 2 * (quad % 4) & 3) << 4;
            }
            to[k] = scale * (static_cast<float>(value) - zero) + offset;
        }
    }
}

// Rows of a matrix in f32 by their numbers, for tables of embeddings that are the output layer too.
class PackedLookup : public MatrixOperation<PackedLookup> {
public:
    OPENVINO_OP("PackedLookup", "ovserve");
    using MatrixOperation::MatrixOperation;

    static constexpr size_t SHAPE_AT = 0;
    static constexpr bool APPENDS = true;
    static size_t size(const Matrix& m, int64_t) { return m.columns; }

    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
        const Matrix& m = *m_matrix;
        outputs[0].set_shape(output_shape(inputs[0].get_shape()));
        const bool is_wide = inputs[0].get_element_type() == ov::element::i64;
        float* to = outputs[0].data<float>();
        isolated_for(inputs[0].get_size(), 8, [&](const tbb::blocked_range<size_t>& range) {
            for (size_t n = range.begin(); n < range.end(); ++n) {
                const int64_t row = is_wide ? inputs[0].data<int64_t>()[n] : inputs[0].data<int32_t>()[n];
                unpack_row(m, std::clamp<int64_t>(row, 0, m.rows - 1), to + n * m.columns);
            }
        });
        return true;
    }
};

// Two quads of 4 bits, as bytes of which each holds a number of both.
INLINE uint32_t two_quads(uint32_t eight) {
    const auto spread = [](uint32_t quad) {
        quad = (quad | quad << 8) & 0x00ff00ff;
        return (quad | quad << 4) & 0x0f0f0f0f;
    };
    return spread(eight & 0xffff) | spread(eight >> 16) << 4;
}

// Twelve bytes of sixteen numbers in 6 bits, as OpenVINO has them: of four, the low halves in two bytes and the high
// bits in the third, the first number highest; but for the low halves of two, of which the first is high.
void pack_sixteen(const uint8_t* from, uint8_t* to) {
    for (size_t quad = 0; quad < 4; ++quad, from += 3) {
        for (size_t j = 0; j < 4; ++j) {
            const unsigned low = j % 2 ? from[j / 2] & 15 : from[j / 2] >> 4;
            const unsigned high = from[2] >> (6 - 2 * j) & 3;
            to[quad / 2 * LINE + j] |= static_cast<uint8_t>(low << 4 * (quad % 2));
            to[2 * LINE + j] |= static_cast<uint8_t>(high << 2 * quad);
        }
    }
}

// Thirty-two numbers in 5 bits: sixteen bytes of low halves, and four of high bits.
void pack_thirty_two(const uint8_t* low, const uint8_t* high, uint8_t* to) {
    for (size_t k = 0; k < 4; ++k) {
        uint32_t word;
        std::memcpy(&word, low + 4 * k, 4);
        word = two_quads(word);
        std::memcpy(to + k * LINE, &word, 4);
    }
    for (size_t k = 0; k < 32; ++k) to[4 * LINE + k % 4] |= (high[k / 8] >> (7 - k % 8) & 1) << k / 4;
}

void pack_block(const Matrix& m, size_t block, const Source& source) {
    const size_t row_bytes = source.row_bytes(), rows = std::min(ROWS, m.rows - block * ROWS);
    const uint32_t flip = source.flip;
    uint8_t* to = m.values + block * m.block_bytes();
    for (size_t r = 0; r < rows; ++r) {
        const size_t row = block * ROWS + r;
        const uint8_t* from = source.values + row * row_bytes;
        if (m.bits == 5) {
            const uint8_t* high = source.high + row * (m.columns / 8);
            for (size_t k = 0; k < row_bytes; k += 16)
                pack_thirty_two(from + k, high + k / 4, to + k / 16 * 5 * LINE + r * 4);
            continue;
        }
        if (m.bits == 6) {
            for (size_t k = 0; k < row_bytes; k += 12) pack_sixteen(from + k, to + k * ROWS + r * 4);
            continue;
        }
        for (size_t k = 0; k < row_bytes; k += 4) {
            uint32_t word;
            std::memcpy(&word, from + k, 4);
            word ^= flip;
            word = m.bits == 4 ? two_quads(word) : word;
            std::memcpy(to + k * ROWS + r * 4, &word, 4);
        }
    }
}

// The numbers of rows, so that those of 16 rows stand next to each other. What is beyond the last row stays zero.
template <typename T>
void pack_numbers(const Matrix& m, size_t block, const T* from, size_t columns, T* to) {
    if (!from) return;
    const size_t numbers = m.columns / columns, rows = std::min(ROWS, m.rows - block * ROWS);
    for (size_t r = 0; r < rows; ++r)
        for (size_t n = 0; n < numbers; ++n)
            to[(block * numbers + n) * ROWS + r] = from[(block * ROWS + r) * numbers + n];
}

// Pack blocks of rows, and give back the pages of the file that they were in.
void pack_blocks(const Matrix& m, const Source& source, size_t begin, size_t end) {
    tbb::parallel_for(begin, end, [&](size_t block) {
        pack_block(m, block, source);
        pack_numbers(m, block, source.scales, m.span, m.scales);
        pack_numbers(m, block, source.factors, m.group, m.factors);
        pack_numbers(m, block, source.zeros, m.group, m.zeros);
        pack_numbers(m, block, source.offsets, m.group, m.offsets);
        pack_numbers(m, block, source.offset_scales, m.offset_span, m.offset_scales);
        pack_numbers(m, block, source.row_scales, m.columns, m.row_scales);
    });
    if (!source.is_file) return;
    const size_t block_bytes = ROWS * source.row_bytes();
    const auto page = [&](size_t block) {
        const size_t at = std::min(block * block_bytes, m.rows * source.row_bytes());
        return (reinterpret_cast<uintptr_t>(source.values) + at) / PAGE * PAGE;
    };
    const uintptr_t first = begin ? page(begin) : page(0) + PAGE;  // others may be in the first page
    if (first < page(end)) madvise(reinterpret_cast<void*>(first), page(end) - first, MADV_DONTNEED);
}

}  // namespace
}  // namespace ovserve

using namespace ovserve;

extern "C" {

int64_t ovserve_arena(size_t bytes) {
    try {
        const std::lock_guard<std::mutex> guard(lock);
        arenas[++last_handle] = std::make_shared<Arena>(bytes);
        return last_handle;
    } catch (const std::exception&) {
        return 0;
    }
}

// Copy a matrix into an arena. Return a handle, or 0 where the arena is full or no function knows the form.
int64_t ovserve_pack(int64_t arena_handle, const Source* from) {
    const Source& source = *from;
    auto made = std::make_shared<Matrix>();
    Matrix& m = *made;
    m.rows = source.rows, m.columns = source.columns, m.bits = source.bits, m.zero = source.zero;
    m.is_float = source.is_float, m.offset_unit = source.offset_unit;
    m.blocks = (m.rows + ROWS - 1) / ROWS;
    m.group = source.group, m.chunk = source.chunk, m.part = std::min(m.group, m.chunk);
    m.span = source.span, m.offset_span = source.offset_span;
    if (m.bits != 6 && m.part != m.chunk) return 0;
    bool fits = true;
    const auto take = [&](const auto* numbers, size_t columns, auto*& to) {
        using Number = std::remove_reference_t<decltype(*to)>;
        to = numbers ? reinterpret_cast<Number*>(m.arena->take(m.blocks * (m.columns / columns) * ROWS * sizeof(*to)))
                     : nullptr;
        fits &= !numbers || to;
    };
    {
        const std::lock_guard<std::mutex> guard(lock);
        m.arena = arenas.at(arena_handle);
        m.values = m.arena->take(m.blocks * m.block_bytes());
        take(source.scales, m.span, m.scales);
        take(source.factors, m.group, m.factors);
        take(source.zeros, m.group, m.zeros);
        take(source.offsets, m.group, m.offsets);
        take(source.offset_scales, m.offset_span, m.offset_scales);
        take(source.row_scales, m.columns, m.row_scales);
    }
    if ((m.bits == 5) != (source.high != nullptr)) return 0;
    if (m.is_float && (m.bits != 4 || m.group != 32 || !m.factors || m.scales || m.zeros || m.offsets)) return 0;
    const Instructions best = best_instructions();
    m.functions = best >= AVX512_VNNI ? functions_avx512(m) : best == AVX_VNNI ? functions_avx_vnni(m) : functions_avx2(m);
    if (best >= AVX512_VNNI)
        m.unpacked = unpacked_avx512(m), m.unpack = unpack_block_avx512;
    else if (best == AVX2_ALONE)
        m.unpacked = unpacked_avx2(m), m.unpack = unpack_block_avx2;
    if (!fits || !m.values || m.functions.empty()) return 0;
    const size_t step = source.is_file ? std::max<size_t>(1, PACKED_AT_ONCE / m.block_bytes()) : m.blocks;
    for (size_t block = 0; block < m.blocks; block += step)
        pack_blocks(m, source, block, std::min(m.blocks, block + step));
    const std::lock_guard<std::mutex> guard(lock);
    matrices[++last_handle] = made;
    return last_handle;
}

// Forget a handle of an arena or a matrix; operations that were made of it keep theirs.
void ovserve_release(int64_t handle) {
    const std::lock_guard<std::mutex> guard(lock);
    arenas.erase(handle);
    matrices.erase(handle);
}

// Multiply outside a model, for tests and benchmarks.
void ovserve_multiply(int64_t handle, const float* in, float* out, size_t tokens) {
    std::shared_ptr<Matrix> m;
    {
        const std::lock_guard<std::mutex> guard(lock);
        m = matrices.at(handle);
    }
    multiply(*m, in, out, tokens);
}

}  // extern "C"

OPENVINO_CREATE_EXTENSIONS(
    std::vector<ov::Extension::Ptr>({std::make_shared<ov::OpExtension<PackedMatMul>>(),
                                     std::make_shared<ov::OpExtension<PackedExperts>>(),
                                     std::make_shared<ov::OpExtension<PackedLookup>>(),
                                     std::make_shared<ov::OpExtension<attention::PagedAttention>>()}));
