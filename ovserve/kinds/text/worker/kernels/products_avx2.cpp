// Products with AVX2 alone.

#include "products_256.h"

ovserve::Functions ovserve::functions_avx2(const Matrix& m) {
    return functions_of<Products256<false>>(m);
}
