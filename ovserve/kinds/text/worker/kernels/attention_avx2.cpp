// Attention with AVX2.

#include "lanes_256.h"
#include "prompt_attention.h"

attention::Kernels attention::kernels_avx2() {
    return {round_numbers, split_queries, decode, merge, prompt};
}
