// Attention with AVX-512, without instructions for bf16.

#include "lanes_512.h"
#include "prompt_attention.h"

attention::Kernels attention::kernels_avx512() {
    return {round_numbers, split_queries, decode, merge, prompt};
}
