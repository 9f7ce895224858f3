// Adasum: adds what is orthogonal in the ranks' vectors and averages what is parallel.
//
//   of two vectors     adasum(a, b) = (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b
//   of any number      neighbours first, then neighbouring results, and so on; a vector without
//                      neighbour waits for the next level:
//
//        0   1   2   3   4         a stands for n ranks, b for m: with n / (n + m) and m / (n + m)
//         \ /     \ /    |         in place of the halves, so that parallel vectors give the mean
//          01      23    |         over all ranks, however many there are. (The two halves are the
//            \____/      |         two orders in which steps a and b may follow each other; these
//             0123       |         weights count the orders by ranks.) The same as the original
//                \______/          where the number is a power of two.
//                 01234
//
// Words:  shard   the elements of a tensor that one rank holds of everybody's vectors
//         level   one row of the picture; all pairs of a level are combined at once
// Steps:  every rank sends each shard of its tensors to the shard's owner; for each of the
//         log2(P) levels owners exchange the dot products of their shards and combine them; owners
//         send the results to all. So (P-1)/P * 2N bytes per rank, as an allreduce, and 24 bytes
//         per tensor, pair and peer. Memory: N bytes per rank (3N for 16-bit floats).
// Bits:   shards are cut from each tensor, not from the batch: dot products are added in the same
//         order wherever the tensor lies. Every result is computed by one rank.
// Source: S. Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021.
#pragma once

#include <vector>

#include "collectives/algorithms/direct.h"

namespace rueda::algorithms {

// Tensors of one floating dtype, the same counts on all ranks; each has its own dot products.
// 16-bit floats are combined in f32 and rounded once; the result is scaled by prescale and the
// scaling's factor.
Script adasum(const direct::Group& group, const CollectiveDesc& desc,
              std::span<const Part> tensors);

}  // namespace rueda::algorithms
