// The kernel `aten`: PyTorch's own blockwise attention for the CPU, of the PyTorch that this
// process has loaded. Called through PyTorch's stable C functions (the AOTInductor shim): no
// headers, no Python, no interpreter lock.
//
// It gets what it can do: rectangles, and causal squares that begin with a query that sees one key.
// Anything else of a tile (staircases of windows, steps that differ, a few rows) goes to `native`.
//
// What is made good here: it knows no rows without keys (they are never passed on), no gradient of
// the log-sum-exp and no `delta` (they travel in extra elements of each row), no sums to go on from
// (results are merged), no fewer KV heads (heads go one by one), no rows by number (they are
// gathered), and it starts threads of its own (it gets one: threads are the caller's).
//
// Numerics: bfloat16 stays bfloat16, so each partial result and gradient is rounded to it once; its
//           exp is good to 20 units in the last place (ours: 1).
#pragma once

#include "attention/local_kernel.h"
#include "collectives/base/status.h"

namespace rueda::attention {

// Whether this process has loaded a PyTorch that has the functions; looks again until it has.
bool aten_available();
// What is missing, if so.
Status find_aten();

// Of a kernel: only where it is available.
void aten_forward(const KernelTile& tile, float* scratch);
void aten_backward(const KernelTile& tile, float* scratch);

}  // namespace rueda::attention
