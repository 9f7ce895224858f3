// Pieces: the tiles of a plan cut into what libraries' kernels compute. Pure integers.
//
// Libraries compute full rectangles and causal squares, in which query i sees the keys up to i.
// Whatever a band, a stride or an offset makes of a tile is cut into these, which removes the
// question where a library lays its diagonal when there are more keys than queries; what remains, a
// band, goes to a kernel that takes any.
#pragma once

#include <vector>

#include "attention/plan.h"

namespace rueda::attention {

enum class PieceKind : uint8_t { kFull = 0, kCausal = 1, kBand = 2 };

// One kernel call. Heads are KV heads, numbers of the whole model.
struct DevicePiece {
  PieceKind kind = PieceKind::kFull;
  int64_t head_begin = 0, head_end = 0, head_step = 1;
  Run q, k;  // rows of the tensors that have them: the rank's, or a message's
  // Of a band, and of all pieces where places count: query i stands at q_pos + i * q_step, key j at
  // k_pos + j * k_step, and sees it where low <= key's - query's <= high of the plan's band.
  int64_t q_pos = 0, q_step = 0, k_pos = 0, k_step = 0;
};

// Few and large pieces that cover the tiles. places: whether distances count beside what is seen
// (ALiBi): each piece then says where its rows stand, and only rows that go on evenly are joined.
std::vector<DevicePiece> pieces_of(const std::vector<Tile>& tiles, const Band& band,
                                   bool places = false);

// The same tiles with the rows of the side that travels counted in the message, set by set; a tile
// whose heads lie in several sets is one for each.
std::vector<Tile> in_message(const std::vector<Tile>& tiles, const std::vector<RowSet>& sets,
                             bool keys_travel);
// Which of a message's sets has a KV head.
int set_of(const std::vector<RowSet>& sets, int64_t head);

}  // namespace rueda::attention
