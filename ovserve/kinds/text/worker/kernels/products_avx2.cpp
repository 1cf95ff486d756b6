// Products with AVX2 alone.

#include "k_quants_256.h"

namespace ovserve {

Functions functions_avx2(const Matrix& m) {
    if (!is_k_quant(m)) return functions_of<Products256<false>>(m);
    return m.bits == 4   ? k_quants<4, true>()
           : m.bits == 5 ? k_quants<5, true>()
           : m.offsets   ? k_quants<6, true>()
                         : k_quants<6, false>();
}

BlockFunction unpacked_avx2(const Matrix& m) {
    if (!is_k_quant(m) || m.bits == 4) return nullptr;
    return m.bits == 5 ? block_of_k_quants<5, true, 4, true>
           : m.offsets ? block_of_k_quants<6, true, 4, true>
                       : block_of_k_quants<6, false, 4, true>;
}

void unpack_block_avx2(const Matrix& m, const uint8_t* weights, uint8_t* to) {
    m.bits == 5 ? unpack_k_quants<5>(m, weights, to) : unpack_k_quants<6>(m, weights, to);
}

}  // namespace ovserve
