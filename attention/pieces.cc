#include "attention/pieces.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "collectives/base/check.h"

namespace rueda::attention {
namespace {

constexpr int64_t kBandRows = 512;  // queries of a block where a window is cut
// Keys that all queries of a block see: fewer stay with those that only some see.
constexpr int64_t kWorthACall = 64;

Run part_of(const Run& run, int64_t begin, int64_t end) {
  return {run.at(begin), end - begin, run.step};
}
bool follows(const Run& a, const Run& b) { return a.step == b.step && b.begin == a.at(a.count); }
Run together(const Run& a, const Run& b) { return {a.begin, a.count + b.count, a.step}; }

// Where one side of a piece stands. Without places all are alike, and go on in each other.
struct Stand {
  int64_t pos, step;
  bool operator==(const Stand&) const = default;
};
Stand stand_of(const DevicePiece& p, Run DevicePiece::*side) {
  return side == &DevicePiece::q ? Stand{p.q_pos, p.q_step} : Stand{p.k_pos, p.k_step};
}
bool goes_on(const DevicePiece& a, const DevicePiece& b, Run DevicePiece::*side) {
  const Stand first = stand_of(a, side), second = stand_of(b, side);
  return follows(a.*side, b.*side) && first.step == second.step &&
         first.pos + first.step * (a.*side).count == second.pos;
}

using Numbers = std::tuple<int64_t, int64_t, int64_t>;
Numbers heads_in(const DevicePiece& p) { return {p.head_begin, p.head_end, p.head_step}; }
Numbers numbers_of(const Run& run) { return {run.begin, run.step, run.count}; }

class Cut {
 public:
  Cut(const Tile& tile, const Band& band, bool places, std::vector<DevicePiece>* into)
      : t_(tile), band_(band), places_(places), into_(into) {}

  void run() const {
    if (t_.q.count == 0 || t_.k.count == 0) return;
    const int64_t rows = t_.q.count, keys = t_.k.count;
    const auto [first_begin, first_end] = seen(0);
    const auto [last_begin, last_end] = seen(rows - 1);
    if (last_begin == 0 && first_end == keys) return add(PieceKind::kFull, 0, rows, 0, keys);
    if (last_begin == 0 && t_.q_step == t_.k_step) return triangle();
    for (int64_t begin = 0; begin < rows; begin += kBandRows)
      block(begin, std::min(rows, begin + kBandRows));
  }

 private:
  // The keys that query i sees, by place.
  std::pair<int64_t, int64_t> seen(int64_t i) const {
    const int64_t at = t_.q_pos + i * t_.q_step - t_.k_pos;
    return {std::max<int64_t>(0, ceil_div(at + band_.low, t_.k_step)),
            std::min(t_.k.count, floor_div(at + band_.high, t_.k_step) + 1)};
  }

  void add(PieceKind kind, int64_t q_begin, int64_t q_end, int64_t k_begin, int64_t k_end) const {
    DevicePiece piece{kind,
                      t_.head_begin,
                      t_.head_end,
                      t_.head_step,
                      part_of(t_.q, q_begin, q_end),
                      part_of(t_.k, k_begin, k_end)};
    if (kind == PieceKind::kBand || places_) {
      piece.q_pos = t_.q_pos + q_begin * t_.q_step;
      piece.q_step = t_.q_step;
      piece.k_pos = t_.k_pos + k_begin * t_.k_step;
      piece.k_step = t_.k_step;
    }
    into_->push_back(piece);
  }

  // Query i sees the keys up to i + offset.
  void triangle() const {
    const int64_t rows = t_.q.count, keys = t_.k.count;
    const int64_t offset = floor_div(t_.q_pos - t_.k_pos + band_.high, t_.k_step);
    const int64_t begin = std::max<int64_t>(0, -offset), end = std::min(rows, keys - offset);
    if (end > begin) {
      if (offset + begin > 0) add(PieceKind::kFull, begin, end, 0, offset + begin);
      add(PieceKind::kCausal, begin, end, offset + begin, offset + end);
    }
    const int64_t rest = std::max(begin, end);
    if (rows > rest) add(PieceKind::kFull, rest, rows, 0, keys);
  }

  void block(int64_t begin, int64_t end) const {
    const auto [left, right] = seen(begin);
    const auto [last_left, last_right] = seen(end - 1);
    if (left >= last_right) return;
    if (right - last_left < kWorthACall) return add(PieceKind::kBand, begin, end, left, last_right);
    if (left < last_left) add(PieceKind::kBand, begin, end, left, last_left);
    add(PieceKind::kFull, begin, end, last_left, right);
    if (right < last_right) add(PieceKind::kBand, begin, end, right, last_right);
  }

  const Tile& t_;
  const Band& band_;
  const bool places_;
  std::vector<DevicePiece>* const into_;
};

// Rectangles that touch along one side become one, where the other side is alike.
std::vector<DevicePiece> join_full(std::vector<DevicePiece> pieces, Run DevicePiece::*along,
                                   Run DevicePiece::*other) {
  std::stable_sort(pieces.begin(), pieces.end(), [&](const DevicePiece& a, const DevicePiece& b) {
    return std::tuple(heads_in(a), numbers_of(a.*other), numbers_of(a.*along)) <
           std::tuple(heads_in(b), numbers_of(b.*other), numbers_of(b.*along));
  });
  std::vector<DevicePiece> joined;
  for (const DevicePiece& piece : pieces) {
    DevicePiece* last = joined.empty() ? nullptr : &joined.back();
    if (last != nullptr && heads_in(*last) == heads_in(piece) && last->*other == piece.*other &&
        stand_of(*last, other) == stand_of(piece, other) && goes_on(*last, piece, along)) {
      last->*along = together(last->*along, piece.*along);
    } else {
      joined.push_back(piece);
    }
  }
  return joined;
}

// Two squares and the rectangle between them are one larger square.
std::vector<DevicePiece> join_causal(std::vector<DevicePiece> squares,
                                     std::vector<DevicePiece>* full) {
  std::stable_sort(squares.begin(), squares.end(), [](const DevicePiece& a, const DevicePiece& b) {
    return std::tuple(heads_in(a), numbers_of(a.q), numbers_of(a.k)) <
           std::tuple(heads_in(b), numbers_of(b.q), numbers_of(b.k));
  });
  std::map<std::tuple<Numbers, Numbers, Numbers>, size_t> between;
  for (size_t i = 0; i < full->size(); ++i) {
    const DevicePiece& p = (*full)[i];
    between[{heads_in(p), numbers_of(p.q), numbers_of(p.k)}] = i;
  }
  std::vector<DevicePiece> joined;
  for (const DevicePiece& square : squares) {
    DevicePiece* last = joined.empty() ? nullptr : &joined.back();
    if (last != nullptr && heads_in(*last) == heads_in(square) &&
        goes_on(*last, square, &DevicePiece::q) && goes_on(*last, square, &DevicePiece::k)) {
      const auto found =
          between.find({heads_in(square), numbers_of(square.q), numbers_of(last->k)});
      if (found != between.end()) {
        (*full)[found->second].q.count = 0;  // taken
        between.erase(found);
        last->q = together(last->q, square.q);
        last->k = together(last->k, square.k);
        continue;
      }
    }
    joined.push_back(square);
  }
  std::erase_if(*full, [](const DevicePiece& p) { return p.q.count == 0; });
  return joined;
}

// Where rows of a shard, which travel as `runs`, lie in the message: runs, one after another.
std::vector<Run> rows_in(const std::vector<Run>& runs, Run rows) {
  std::vector<Run> found;
  while (rows.count > 0) {
    int64_t before = 0;
    const Run* in = nullptr;
    for (const Run& run : runs) {
      const int64_t off = rows.begin - run.begin;
      if (off >= 0 && off % run.step == 0 && off / run.step < run.count) {
        in = &run;
        break;
      }
      before += run.count;
    }
    RUEDA_CHECK(in != nullptr, "a tile has rows that did not travel");
    const int64_t at = (rows.begin - in->begin) / in->step;
    int64_t step = 1, count = 1;
    if (rows.step % in->step == 0) {
      step = rows.step / in->step;
      count = std::min(rows.count, ceil_div(in->count - at, step));
    }
    found.push_back({before + at, count, count > 1 ? step : 1});
    rows = part_of(rows, count, rows.count);
  }
  return found;
}

}  // namespace

std::vector<DevicePiece> pieces_of(const std::vector<Tile>& tiles, const Band& band, bool places) {
  std::vector<DevicePiece> cut, full, causal, bands;
  for (const Tile& tile : tiles) Cut(tile, band, places, &cut).run();
  for (const DevicePiece& piece : cut) {
    (piece.kind == PieceKind::kFull     ? full
     : piece.kind == PieceKind::kCausal ? causal
                                        : bands)
        .push_back(piece);
  }
  causal = join_causal(std::move(causal), &full);
  full = join_full(join_full(std::move(full), &DevicePiece::q, &DevicePiece::k), &DevicePiece::k,
                   &DevicePiece::q);
  full.insert(full.end(), causal.begin(), causal.end());
  full.insert(full.end(), bands.begin(), bands.end());
  return full;
}

std::vector<Tile> in_message(const std::vector<Tile>& tiles, const std::vector<RowSet>& sets,
                             bool keys_travel) {
  std::vector<Tile> found;
  for (const Tile& tile : tiles) {
    for (const RowSet& set : sets) {
      Tile part = tile;
      const int64_t skipped =
          std::max<int64_t>(0, ceil_div(set.head_begin - tile.head_begin, tile.head_step));
      part.head_begin += skipped * tile.head_step;
      part.head_end = std::min(tile.head_end, set.head_end);
      if (part.head_begin >= part.head_end) continue;
      int64_t done = 0;
      for (const Run& rows : rows_in(set.rows, keys_travel ? tile.k : tile.q)) {
        if (keys_travel) {
          part.k = rows;
          part.k_pos = tile.k_pos + done * tile.k_step;
        } else {
          part.q = rows;
          part.q_pos = tile.q_pos + done * tile.q_step;
        }
        found.push_back(part);
        done += rows.count;
      }
    }
  }
  return found;
}

int set_of(const std::vector<RowSet>& sets, int64_t head) {
  for (size_t i = 0; i < sets.size(); ++i) {
    if (head >= sets[i].head_begin && head < sets[i].head_end) return static_cast<int>(i);
  }
  RUEDA_CHECK(false, "a piece has a head whose rows did not travel");
  return -1;
}

}  // namespace rueda::attention
