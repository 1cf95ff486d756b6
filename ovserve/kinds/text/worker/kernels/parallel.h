// Loops over the threads of OpenVINO's CPU plugin.

#pragma once

#include <cstddef>

#include "tbb/parallel_for.h"
#include "tbb/task_arena.h"

// Isolated: a thread that waits here must not begin another operation, which would use the same buffers.
template <typename Body>
void isolated_for(size_t count, size_t grain, const Body& body) {
    tbb::this_task_arena::isolate([&] {
        tbb::parallel_for(tbb::blocked_range<size_t>(0, count, grain), body, tbb::simple_partitioner());
    });
}
