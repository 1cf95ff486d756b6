// Which instructions the kernels use.

#pragma once

#include <cpuid.h>

#include <cstdlib>
#include <string>

enum Instructions { AVX2_ALONE, AVX_VNNI, AVX512_VNNI, AVX512_BF16 };

// The processor's best, unless oneDNN's variable says less: to test and measure the others.
inline Instructions best_instructions() {
    const char* variable = std::getenv("ONEDNN_MAX_CPU_ISA");
    const std::string most = variable ? variable : "";
    if (most == "AVX2") return AVX2_ALONE;
    if (most != "AVX2_VNNI" && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return most != "AVX512_CORE_VNNI" && __builtin_cpu_supports("avx512bf16") ? AVX512_BF16 : AVX512_VNNI;
    unsigned a = 0, b, c, d;
    const bool has_it = __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
    return has_it ? AVX_VNNI : AVX2_ALONE;
}
