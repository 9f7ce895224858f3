// RandomTraffic: thousands of sends, receives, cancels and expiries between two transports, by a
// seed, and what must hold of them.
//
//   tag:  | a space: plain, or rendezvous | generation | kind: its size |
//
// Each side uses the tags of its generation of a space; going on to the next one it lets the one
// before expire, when it likes. So the two are of different generations at times.
//
// What must hold, by (direction, tag): a receive that ends well has the whole of one send's bytes;
// sends arrive in order; between two that arrive lie as many others as there are receives between
// theirs, those among them that were cancelled counting or not. Who takes a transfer back owns its
// memory again. In the end everything that can meet has met, and nothing is left.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "collectives/transport/tag_transport.h"

namespace rueda::transport {

class RandomTraffic {
 public:
  using Sides = std::array<TagTransport*, 2>;
  RandomTraffic(Sides sides, unsigned seed) : sides_(sides), random_(seed) {}
  ~RandomTraffic() {
    for (auto& move : moves_) move->transfer.reset();
  }

  void step() {
    const size_t side = random_() % 2;
    switch (random_() % 16) {
      case 0: return take_back(any());
      case 1: return take_back(any());
      case 2: {
        // At most one generation ahead, or nothing would meet.
        const size_t space = random_() % 2;
        const bool ahead = generation_[side][space] > generation_[1 - side][space];
        if (!ahead && random_() % 4 == 0) go_on(side, space);
        return;
      }
      default: return start(side, random_() % 2 == 0);
    }
  }

  // Both ends of every space come to the same generation, everything arrives. `settle` drives both
  // until nothing moves any more. Empty: all is well, else what is wrong.
  template <typename Settle>
  std::string finish(Settle settle) {
    for (const size_t space : {0, 1}) {
      while (generation_[0][space] != generation_[1][space])
        go_on(generation_[0][space] < generation_[1][space] ? 0 : 1, space);
    }
    settle();
    note_ended();
    for (auto& [key, channel] : channels_) {
      const std::string wrong = check(channel);
      if (!wrong.empty()) return describe(key) + ": " + wrong;
    }
    for (const auto& move : taken_) {
      if (!std::all_of(move.begin(), move.end(), [](std::byte b) { return b == kTaken; }))
        return "memory was written after its transfer had been taken back";
    }
    for (const size_t side : {0, 1}) {
      for (const size_t space : {0, 1}) go_on(side, space);
    }
    settle();
    for (const size_t side : {0, 1}) {
      if (sides_[side]->tags_in_use() != 0) return "something is left of tags that have expired";
      if (!sides_[side]->flushed()) return "something has not left";
    }
    note_ended();
    return moves_.empty() ? "" : "a transfer has not ended with its tag";
  }
  size_t arrived() const { return arrived_; }

 private:
  using Bytes = std::vector<std::byte>;
  // From which side, and the tag.
  using Key = std::pair<size_t, Tag>;
  static constexpr std::byte kTaken{0xee};
  static constexpr size_t kMost = 60;  // under way

  struct Move {
    size_t side = 0;
    bool sends = false;
    Key key;
    size_t index = 0;  // among those of its key and direction
    Bytes bytes;
    std::unique_ptr<Transfer> transfer = std::make_unique<Transfer>();
  };
  enum class End { kPending, kOk, kCancelled };
  struct Channel {
    std::vector<End> sends, recvs;
    std::vector<size_t> came;  // by recv that ended well: which send
  };

  static size_t size_of(Tag tag) {
    constexpr size_t kSizes[] = {9, 300, TagTransport::kEagerBytes + 1,
                                 TagTransport::kFarEagerBytes + 1,
                                 TagTransport::kPieceBytes + 5000};
    return kSizes[tag % 8];
  }
  Tag tag_of(size_t side, size_t space) {
    constexpr unsigned kWeights[] = {0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 4};
    return space_of(space) + (Tag{generation_[side][space]} << 8) +
           kWeights[random_() % std::size(kWeights)];
  }
  static Tag space_of(size_t space) {
    return space == 0 ? Tag{3} << 48 : kRendezvousTag | Tag{4} << 48;
  }
  // The bytes of a send: which it is, in all of them.
  static Bytes content(const Key& key, size_t index) {
    Bytes bytes(size_of(key.second));
    const uint64_t mark = key.second * 0x9e37'79b9'7f4a'7c15ull + key.first * 77 + index * 131;
    for (size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<std::byte>(mark >> (i % 8 * 8) ^ i / 256);
    return bytes;
  }

  void start(size_t side, bool sends) {
    note_ended();
    if (moves_.size() >= kMost) return take_back(any());
    auto move = std::make_unique<Move>();
    const Tag tag = tag_of(side, random_() % 2);
    move->side = side;
    move->sends = sends;
    move->key = {sends ? side : 1 - side, tag};
    Channel& channel = channels_[move->key];
    auto& ends = sends ? channel.sends : channel.recvs;
    move->index = ends.size();
    ends.push_back(End::kPending);
    move->bytes = sends ? content(move->key, move->index) : Bytes(size_of(tag));
    if (!sends) channel.came.push_back(0);
    const auto peer = static_cast<Rank>(1 - side);
    const auto meta = static_cast<uint16_t>(tag % 8);
    sends ? sides_[side]->send(move->transfer.get(), peer, tag, move->bytes, meta)
          : sides_[side]->recv(move->transfer.get(), peer, tag, move->bytes, meta);
    moves_.push_back(std::move(move));
  }

  Move* any() { return moves_.empty() ? nullptr : moves_[random_() % moves_.size()].get(); }

  // By cancel, or by its end.
  void take_back(Move* move) {
    if (move == nullptr) return;
    if (random_() % 2 == 0 || move->transfer->done()) {
      sides_[move->side]->cancel(move->transfer.get());
      return note_ended();
    }
    end_of(*move) = End::kCancelled;
    move->transfer.reset();
    keep(move);
    std::erase_if(moves_, [&](const auto& m) { return m.get() == move; });
  }

  void go_on(size_t side, size_t space) {
    const Tag first = space_of(space) + (Tag{generation_[side][space]++} << 8);
    sides_[side]->expire(first, first + 0xff);
    note_ended();
  }

  End& end_of(const Move& move) {
    Channel& channel = channels_[move.key];
    return (move.sends ? channel.sends : channel.recvs)[move.index];
  }

  void note_ended() {
    std::erase_if(moves_, [&](auto& move) {
      if (!move->transfer->done()) return false;
      const Status& status = move->transfer->status();
      end_of(*move) = status.ok() ? End::kOk : End::kCancelled;
      if (!status.ok() && status.code() != Code::kCancelled) wrong_ = status.to_string();
      if (status.ok() && !move->sends) note_arrived(*move);
      if (!status.ok()) keep(move.get());
      return true;
    });
  }

  // Its memory is the caller's again: nobody writes there, and nobody sends what it puts there.
  void keep(Move* move) {
    std::fill(move->bytes.begin(), move->bytes.end(), kTaken);
    if (taken_.size() < 200) taken_.push_back(std::move(move->bytes));
  }

  void note_arrived(const Move& move) {
    Channel& channel = channels_[move.key];
    ++arrived_;
    for (size_t index = 0; index < channel.sends.size(); ++index) {
      if (move.bytes != content(move.key, index)) continue;
      channel.came[move.index] = index;
      return;
    }
    wrong_ = describe(move.key) + ": bytes arrived that nobody sent";
  }

  std::string check(const Channel& channel) const {
    if (!wrong_.empty()) return wrong_;
    const auto count = [&](size_t begin, size_t end) {  // surely sent, perhaps sent
      std::pair<size_t, size_t> result{0, 0};
      for (size_t i = begin; i < end; ++i) {
        result.first += channel.sends[i] == End::kOk ? 1 : 0;
        result.second += channel.sends[i] == End::kPending ? 0 : 1;
      }
      return result;
    };
    size_t next_recv = 0, next_send = 0;
    for (size_t recv = 0; recv < channel.recvs.size(); ++recv) {
      if (channel.recvs[recv] != End::kOk) continue;
      const size_t send = channel.came[recv];
      if (send < next_send) return "a message arrived out of its order, or twice";
      const auto [sure, most] = count(next_send, send);
      const size_t others = recv - next_recv;
      if (others < sure || others > most) {
        return "receive " + std::to_string(recv) + " has send " + std::to_string(send) +
               ", with as many before as cannot be";
      }
      next_recv = recv + 1;
      next_send = send + 1;
    }
    const auto pending = [](const std::vector<End>& ends) {
      return std::count(ends.begin(), ends.end(), End::kPending);
    };
    if (pending(channel.sends) > 0 && pending(channel.recvs) > 0)
      return "a send and a receive wait for each other";
    return "";
  }

  static std::string describe(const Key& key) {
    return "from " + std::to_string(key.first) + ", tag " + std::to_string(key.second);
  }

  Sides sides_;
  std::mt19937 random_;
  unsigned generation_[2][2] = {};  // by side, space
  std::vector<std::unique_ptr<Move>> moves_;
  std::map<Key, Channel> channels_;
  std::vector<Bytes> taken_;
  std::string wrong_;
  size_t arrived_ = 0;
};

}  // namespace rueda::transport
