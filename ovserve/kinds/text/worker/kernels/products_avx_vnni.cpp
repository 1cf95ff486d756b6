// Products with AVX-VNNI, if the compiler knows it.

#include "products_256.h"

ovserve::Functions ovserve::functions_avx_vnni(const Matrix& m) {
    return functions_of<Products256<KNOWS_AVX_VNNI>>(m);
}
