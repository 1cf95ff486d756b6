// Attention with AVX-512 and its instructions for bf16.

#define BF16_PAIRS
#include "lanes_512.h"
#include "prompt_attention.h"

attention::Kernels attention::kernels_avx512_bf16() {
    return {round_numbers, split_queries, decode, merge, prompt};
}
