#include "attention/decode.h"

#include <utility>

#include "attention/decode_shares.h"
#include "attention/decode_work.h"

namespace rueda::attention {
namespace {

using Bytes = std::pair<std::byte*, int64_t>;

// One message each way with every other rank.
struct Round {
  Link* link;
  const DecodeSpec& s;
  const char* what;
  std::vector<Link::Message> receives, sends;
  std::vector<Rank> from, to;

  template <typename Of>
  Status receive(const Of& of) {
    for (Rank peer = 0; peer < s.ranks; ++peer) {
      if (peer == s.rank) continue;
      const auto [data, bytes] = of(peer);
      auto message = link->recv(peer, data, bytes);
      if (!message.ok()) return link->named(message.status(), what, "receiving from", peer);
      receives.push_back(std::move(message).value());
      from.push_back(peer);
    }
    return {};
  }
  template <typename Of>
  Status send(const Of& of) {
    for (Rank i = 1; i < s.ranks; ++i) {
      const Rank peer = (s.rank + i) % s.ranks;
      const auto [data, bytes] = of(peer);
      auto message = link->send(peer, data, bytes);
      if (!message.ok()) return link->named(message.status(), what, "sending to", peer);
      sends.push_back(std::move(message).value());
      to.push_back(peer);
    }
    return {};
  }
  Status wait() {
    for (size_t i = 0; i < receives.size(); ++i)
      RUEDA_RETURN_IF_ERROR(link->named(link->wait(receives[i]), what, "receiving from", from[i]));
    for (size_t i = 0; i < sends.size(); ++i)
      RUEDA_RETURN_IF_ERROR(link->named(link->wait(sends[i]), what, "sending to", to[i]));
    return {};
  }
};

}  // namespace

Status decode(const DecodeSpec& s, Link* link, DecodeWork* work) {
  const DecodeShares shares(s);
  if (shares.queries_travel()) {
    const int64_t row = shares.row_bytes();
    RUEDA_ASSIGN_OR_RETURN(std::byte* const all,
                           work->take(DecodeSlot::kQueries, shares.all() * row));
    const auto of = [&](Rank rank) -> Bytes {
      return {all + shares.begin(rank) * row, shares.count(rank) * row};
    };
    Round round{link, s, "decode attention, exchange of queries", {}, {}, {}, {}};
    RUEDA_RETURN_IF_ERROR(round.receive(of));
    RUEDA_RETURN_IF_ERROR(work->perform(DecodeStep::kPlaceQueries));
    RUEDA_RETURN_IF_ERROR(round.send([&](Rank) { return of(s.rank); }));
    RUEDA_RETURN_IF_ERROR(round.wait());
  }

  // Receives are there before anybody sends.
  Round parts{link, s, "decode attention, exchange of partial results", {}, {}, {}, {}};
  if (s.ranks > 1) {
    const int64_t bytes = shares.partial_bytes(s.rank);
    RUEDA_ASSIGN_OR_RETURN(std::byte* const came,
                           work->take(DecodeSlot::kCame, (s.ranks - 1) * bytes));
    RUEDA_RETURN_IF_ERROR(parts.receive([&](Rank peer) -> Bytes {
      return {came + (peer < s.rank ? peer : peer - 1) * bytes, bytes};
    }));
  }
  RUEDA_ASSIGN_OR_RETURN(std::byte* const partial,
                         work->take(DecodeSlot::kPartial, shares.all() * shares.width * 4));
  RUEDA_RETURN_IF_ERROR(work->perform(DecodeStep::kAttend));
  RUEDA_RETURN_IF_ERROR(link->check_aborted());
  RUEDA_RETURN_IF_ERROR(parts.send([&](Rank peer) -> Bytes {
    return {partial + shares.begin(peer) * shares.width * 4, shares.partial_bytes(peer)};
  }));
  RUEDA_RETURN_IF_ERROR(parts.wait());

  RUEDA_ASSIGN_OR_RETURN(std::byte* const results,
                         work->take(DecodeSlot::kResults, shares.results_bytes()));
  RUEDA_RETURN_IF_ERROR(work->perform(DecodeStep::kMerge));
  if (shares.results_travel()) {
    const auto of = [&](Rank rank) -> Bytes {
      return {results + shares.result_at(rank), shares.result_bytes(rank)};
    };
    Round round{link, s, "decode attention, exchange of results", {}, {}, {}, {}};
    RUEDA_RETURN_IF_ERROR(round.receive(of));
    RUEDA_RETURN_IF_ERROR(round.send([&](Rank) { return of(s.rank); }));
    RUEDA_RETURN_IF_ERROR(round.wait());
  }
  return work->perform(DecodeStep::kPut);
}

}  // namespace rueda::attention
