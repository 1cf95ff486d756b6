// Attention over a paged KV cache in bf16, as an operation for OpenVINO's CPU plugin. It takes what OpenVINO's
// PagedAttention takes, and writes the new keys and values into the cache first.
//
// A sequence of one token is computed by decode_attention.h, in f32, so a draft token that is a sequence of its own is
// rounded as it would be without drafts. Longer ones are computed by prompt_attention.h, as is one token of a prompt,
// which has ~past_lens.

#pragma once

#include <algorithm>
#include <vector>

#include "attention_kernels.h"
#include "instructions.h"
#include "openvino/op/op.hpp"
#include "parallel.h"
#include "tbb/task_arena.h"

namespace attention {

inline Kernels best_kernels() {
    switch (best_instructions()) {
        case AVX512_BF16: return kernels_avx512_bf16();
        case AVX512_VNNI: return kernels_avx512();
        default: return kernels_avx2();
    }
}

// Tokens of a step: those of a sequence, [begin, end), have `past` tokens before them.
struct Sequence {
    size_t begin, end, past;
    const int32_t* blocks;
    bool is_single;

    size_t tokens() const { return end - begin; }
};

struct Step {
    Shape shape;
    const float *queries, *keys, *values;  // [token][head][size], of values [value_size]
    uint16_t *key_cache, *value_cache;
    float* out;  // [token][head][value_size]
    std::vector<Sequence> sequences;

    size_t width() const { return shape.heads * shape.size; }
};

// A token of a sequence of one.
struct Single {
    const Sequence* sequence;
    Context context;
    size_t partials;  // index of its first one
};

struct SingleTask {
    size_t single, kv_head, part, partials;
};

struct PromptTask {
    const Sequence* sequence;
    size_t kv_head, begin, end;  // rows
};

// Write keys or values of a step into the cache.
inline void store(const Kernels& kernels, const Step& step, const float* from, size_t size, uint16_t* cache) {
    const size_t kv_heads = step.shape.kv_heads;
    for (const Sequence& sequence : step.sequences)
        for (size_t t = sequence.begin; t < sequence.end; ++t) {
            const size_t place = sequence.past + t - sequence.begin;
            const size_t block = static_cast<size_t>(sequence.blocks[place / BLOCK]);
            for (size_t head = 0; head < kv_heads; ++head)
                kernels.round(from + (t * kv_heads + head) * size, size,
                              cache + ((block * kv_heads + head) * BLOCK + place % BLOCK) * size);
        }
}

inline std::vector<PromptTask> prompt_tasks(const Step& step) {
    const size_t group = step.shape.group(), kv_heads = step.shape.kv_heads;
    size_t rows = 0;
    for (const Sequence& sequence : step.sequences)
        if (!sequence.is_single) rows += sequence.tokens() * group;
    const size_t threads = static_cast<size_t>(tbb::this_task_arena::max_concurrency());
    const size_t share = rows * kv_heads / (threads * TASKS_OF_A_THREAD);
    const size_t most = std::clamp((share + ROW_UNIT - 1) / ROW_UNIT * ROW_UNIT, ROW_UNIT, MAX_ROWS);
    std::vector<PromptTask> tasks;
    for (const Sequence& sequence : step.sequences) {
        const size_t own = sequence.is_single ? 0 : sequence.tokens() * group;
        for (size_t begin = 0; begin < own; begin += most)
            for (size_t head = 0; head < kv_heads; ++head)
                tasks.push_back({&sequence, head, begin, std::min(begin + most, own)});
    }
    return tasks;
}

// Contexts of single tokens take turns beyond 34 MB of partials: 256 drafts after 32,000 tokens would have 400 MB.
constexpr size_t MOST_PARTIALS = 1 << 15;

inline void compute(const Step& step) {
    static const Kernels kernels = best_kernels();
    const Shape& shape = step.shape;
    const size_t group = shape.group(), size = shape.size, width = step.width();
    const size_t value_size = shape.value_size, out_width = shape.heads * value_size;
    std::vector<PromptTask> tasks = prompt_tasks(step);
    std::vector<Single> singles;
    std::vector<SingleTask> single_tasks;
    thread_local std::vector<Partial> own_partials;
    thread_local std::vector<float> own_queries;
    std::vector<Partial>& partials = own_partials;  // other threads have others of these names
    std::vector<float>& split = own_queries;
    store(kernels, step, step.keys, size, step.key_cache);
    store(kernels, step, step.values, value_size, step.value_cache);
    auto next = step.sequences.begin();
    do {
        singles.clear(), single_tasks.clear();
        size_t count = 0;
        for (; next != step.sequences.end() && count < MOST_PARTIALS; ++next) {
            if (!next->is_single) continue;
            const size_t end = next->past + 1;
            const size_t begin = shape.window && end > shape.window ? end - shape.window : 0;
            singles.push_back({&*next, {next->blocks, begin, end}, count});
            for (size_t part = 0; part < singles.back().context.parts(); ++part)
                for (size_t head = 0; head < shape.kv_heads; ++head, count += group)
                    single_tasks.push_back({singles.size() - 1, head, part, count});
        }
        partials.resize(std::max(partials.size(), count));
        split.resize(singles.size() * width);
        for (size_t i = 0; i < singles.size(); ++i)
            kernels.split_queries(step.queries + singles[i].sequence->begin * width, shape.scale, width,
                                  split.data() + i * width);
        isolated_for(single_tasks.size() + tasks.size(), 1, [&](const tbb::blocked_range<size_t>& range) {
            thread_local Buffers buffers;
            for (size_t i = range.begin(); i < range.end(); ++i) {
                if (i >= single_tasks.size()) {
                    const PromptTask& task = tasks[i - single_tasks.size()];
                    const Sequence& sequence = *task.sequence;
                    const Rows rows{task.begin, task.end, group, sequence.past, shape.window};
                    kernels.prompt(shape, rows, sequence.blocks, step.queries + sequence.begin * width, step.key_cache,
                                   step.value_cache, task.kv_head, step.out + sequence.begin * out_width, buffers);
                    continue;
                }
                const SingleTask& task = single_tasks[i];
                const Context& context = singles[task.single].context;
                const size_t start = (context.first_part() + task.part) * DECODE_PART;
                const size_t begin = std::max(start, context.begin), end = std::min(start + DECODE_PART, context.end);
                kernels.decode(shape, split.data() + task.single * width + task.kv_head * group * size, context, begin,
                               end, step.key_cache, step.value_cache, task.kv_head, partials.data() + task.partials);
            }
        });
        for (const Single& single : singles)
            for (size_t head = 0; head < shape.heads; ++head)
                kernels.merge(partials.data() + single.partials + head, shape.heads, single.context.parts(), value_size,
                              shape.sinks ? shape.sinks + head : nullptr,
                              step.out + single.sequence->begin * out_width + head * value_size);
        tasks.clear();
    } while (next != step.sequences.end());
}

// Inputs: queries [tokens, heads * size], keys and values [tokens, kv_heads * size] in f32, whose sizes may
// differ, the addresses of the caches of keys and of values as bytes, because the plugin makes i32 of i64, layer by
// layer, each [blocks, kv_heads, 32, size] in bf16, then past_lens, subsequence_begins, block_indices and block_indices_begins, as
// of OpenVINO's PagedAttention, and, if there are any, the sinks of the heads in f32.
class PagedAttention : public ov::op::Op {
public:
    OPENVINO_OP("PagedAttention", "ovserve");

    PagedAttention() = default;
    PagedAttention(const ov::OutputVector& inputs, float scale, int64_t window, int64_t kv_heads, int64_t layer)
        : Op(inputs), m_scale(scale), m_window(window), m_kv_heads(kv_heads), m_layer(layer) {
        constructor_validate_and_infer_types();
    }

    bool visit_attributes(ov::AttributeVisitor& visitor) override {
        visitor.on_attribute("scale", m_scale);
        visitor.on_attribute("window", m_window);
        visitor.on_attribute("kv_heads", m_kv_heads);
        visitor.on_attribute("layer", m_layer);
        return true;
    }

    void validate_and_infer_types() override {
        auto shape = get_input_partial_shape(0);
        const auto &keys = get_input_partial_shape(1)[1], &values = get_input_partial_shape(2)[1];
        shape[1] = shape[1].get_length() / keys.get_length() * values.get_length();
        set_output_type(0, ov::element::f32, shape);
    }

    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
        return std::make_shared<PagedAttention>(inputs, m_scale, m_window, m_kv_heads, m_layer);
    }

    bool has_evaluate() const override { return true; }

    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
        const ov::Shape queries = inputs[0].get_shape();
        const size_t kv_heads = static_cast<size_t>(m_kv_heads), size = inputs[1].get_shape()[1] / kv_heads;
        const size_t heads = queries[1] / size, value_size = inputs[2].get_shape()[1] / kv_heads;
        outputs[0].set_shape({queries[0], heads * value_size});
        const auto numbers = [&](size_t at) { return inputs[at].data<const float>(); };
        const auto places = [&](size_t at) { return inputs[at].data<const int32_t>(); };
        uint16_t* caches[2];
        std::memcpy(caches, inputs[3].data<const uint8_t>() + m_layer * sizeof caches, sizeof caches);
        Step step{{heads, kv_heads, size, value_size, m_scale, static_cast<size_t>(m_window),
                   inputs.size() > SINKS_AT ? numbers(SINKS_AT) : nullptr},
                  numbers(0), numbers(1), numbers(2), caches[0], caches[1], outputs[0].data<float>(), {}};
        const int32_t *past = places(4), *begins = places(5), *blocks = places(6), *first_blocks = places(7);
        for (size_t i = 0; i < inputs[4].get_size(); ++i) {
            const bool is_lone = past[i] < 0;
            step.sequences.push_back({static_cast<size_t>(begins[i]), static_cast<size_t>(begins[i + 1]),
                                      static_cast<size_t>(is_lone ? ~past[i] : past[i]), blocks + first_blocks[i],
                                      begins[i + 1] - begins[i] == 1 && !is_lone});
        }
        compute(step);
        return true;
    }

private:
    static constexpr size_t SINKS_AT = 8;  // input

    float m_scale = 1;
    int64_t m_window = 0, m_kv_heads = 1, m_layer = 0;
};

}  // namespace attention
