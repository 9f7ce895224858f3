// A rank's ordered groups against members that say anything: words, entries and whole calls, in any
// order, while groups are opened, called, closed and aborted here. Nothing is read or written
// outside of what a call was given, every request ends once the job does, and none ends well unless
// all others have sent their entries.
#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "collectives/transport/tag_transport.h"
#include "proto/negotiation_codec.h"
#include "runtime/engine/ordered_groups.h"
#include "runtime/negotiation/group_entry.h"
#include "tests/fuzz/group_request.h"
#include "tests/fuzz/input.h"
#include "tests/transport/pipe_connection.h"

namespace rueda::fuzz {
namespace {

using engine::OrderedGroups;
using engine::ProcessSetPtr;
using engine::Request;
using engine::RequestPtr;
using transport::FrameHeader;
using transport::FrameType;
using transport::Pipe;
using wire::GroupWord;

constexpr Rank kRanks = 3;
constexpr uint64_t kEpoch = 7;

// Of a peer: what it gets, and what it says.
struct Peer {
  std::shared_ptr<Pipe> out = std::make_shared<Pipe>();
  std::shared_ptr<Pipe> in = std::make_shared<Pipe>();
  size_t seen = 0;                   // of out
  std::vector<transport::Tag> tags;  // of data and grants that have come to it
  size_t answers = 0;                // frames of data that it has sent
};

class Session {
 public:
  Session()
      : table_(0, kRanks),
        flight_(flight::FlightRecorder::open(-1, {})),
        recorder_({}, false),
        queue_({-1, nullptr}),
        finisher_(&queue_, flight_.get(), [](const std::string&) {}) {
    membership_.epoch = kEpoch;
    membership_.size = kRanks;
    membership_.names = {"rank 0", "rank 1", "rank 2"};
    memory_.arenas.resize(kRanks);
    memory_.heaps.resize(kRanks);
    memory_.host_of = {0, 1, 2};
    expect(fabric_.open(nullptr).ok(), "a doorbell and a loop");
    fabric_.ringers.resize(kRanks, {-1, nullptr});
    std::vector<transport::TagTransport::Peer> peers(kRanks);
    for (size_t rank = 0; rank < peers.size(); ++rank) {
      peers[rank].name = membership_.names[rank];
      if (rank > 0)
        peers[rank].connection =
            std::make_unique<transport::PipeConnection>(peers_[rank].out, peers_[rank].in);
    }
    fabric_.transport = std::make_unique<transport::TagTransport>(
        0, kEpoch, std::move(peers), fabric_.loop.get(), fabric_.doorbell.get());
    groups_ = std::make_unique<OrderedGroups>(
        engine::OrderedGroup::Shared{&config_, &membership_, &fabric_, &memory_, nullptr,
                                     &finisher_, &recorder_, flight_.get(), nullptr});
    fabric_.transport->set_events(
        {.on_control = [this](
                           Rank peer,
                           std::string_view message) { hear(groups_->on_control(peer, message)); },
         .on_peer_end = [this](Rank, const Status& status) { hear(status); },
         .on_abort = [this](Rank, const Status& status) { hear(status); }});
  }

  void run(Input input) {
    for (int turn = 0; turn < 128 && !input.empty() && over_.ok(); ++turn) {
      now_ += std::chrono::milliseconds(100);
      turn_of(&input);
      advance();
    }
    groups_->break_down(over_.ok() ? cancelled("the end") : over_);
    fabric_.transport->close(cancelled("the end"));
    for (const Started& started : started_) {
      expect(started.request->done(), "every request ends");
      const bool is_call = started.request->group_change == Request::GroupChange::kNone;
      if (!is_call || !started.request->status().ok()) continue;
      for (const Rank rank : started.request->set->ranks)
        expect(rank == 0 || peers_[static_cast<size_t>(rank)].answers > 0,
               "nothing ends well without the others");
    }
  }

 private:
  struct Started {
    RequestPtr request;
    // Of exactly the size that was asked for: a sanitizer sees a byte beyond it.
    std::unique_ptr<std::byte[]> in, out;
  };

  void hear(const Status& status) {
    if (over_.ok()) over_ = status;
  }

  void turn_of(Input* input) {
    const auto what = input->number<uint8_t>();
    Peer& peer = peers_[1 + what / 128];
    const Rank rank = 1 + what / 128;
    switch (what % 8) {
      case 0: return open(what / 8 % 4);
      case 1: return call(input);
      case 2:
        return change(what & 64 ? Request::GroupChange::kClose : Request::GroupChange::kAbort,
                      input->number<uint8_t>());
      case 3: return answer(input, &peer);
      case 4: {
        // Any bytes.
        const std::string_view bytes = input->bytes();
        return hear(groups_->on_control(rank, bytes));
      }
      case 5:
        if (what & 64) groups_->on_peer_left(rank);
        return;
      default: return word(input, what, rank);
    }
  }

  static constexpr std::array<std::array<Rank, kRanks>, 4> kLists = {
      {{0, 1, -1}, {2, 0, 1}, {0, 2, -1}, {0, -1, -1}}};
  static std::vector<Rank> list(size_t which) {
    std::vector<Rank> ranks(kLists[which].begin(), kLists[which].end());
    std::erase(ranks, -1);
    return ranks;
  }

  void open(size_t which) {
    auto opened = table_.open_group("g", list(which));
    if (!opened.ok()) return;
    sets_.push_back(opened.value());
    change(Request::GroupChange::kOpen, sets_.size() - 1);
  }

  void change(Request::GroupChange change, size_t which) {
    if (sets_.empty()) return;
    const ProcessSetPtr& set = sets_[which % sets_.size()];
    if (change == Request::GroupChange::kClose && !table_.close_group(set)) return;
    const auto request = std::make_shared<Request>("change");
    request->set = set;
    request->group_change = change;
    start(request);
  }

  void start(const RequestPtr& request) {
    expect(request->claim().ok(), "a new request can be claimed");
    started_.push_back({request, nullptr, nullptr});
    groups_->take(request.get(), now_);
  }

  void call(Input* input) {
    if (sets_.empty()) return;
    const ProcessSetPtr& set = sets_[input->number<uint8_t>() % sets_.size()];
    const auto request = std::make_shared<Request>("call in " + set->describe());
    request->set = set;
    wire::Request& asked = request->announcement;
    const auto message = input->number<uint8_t>();
    Started started{request, nullptr, nullptr};
    size_t room = 0;
    if (message < 32) {
      asked.kind = message & 1 ? CollectiveKind::kSend : CollectiveKind::kRecv;
      asked.shape = {message};
      request->tag = message / 2 % 4;
      request->peer = set->ranks[message % set->ranks.size()];
      if ((message & 17) == 0) request->peer = engine::GroupMessages::kAnybody;
      room = message * size_of(asked.dtype);
    } else {
      asked = group_request(input, *set->place, set->size());
      if (asked.kind >= CollectiveKind::kReduce || asked.kind == CollectiveKind::kBroadcast)
        asked.root = set->ranks[static_cast<size_t>(asked.root % set->size())];
      const size_t row = static_cast<size_t>(elements_per_row(asked.shape)) * size_of(asked.dtype);
      // A result of the runtime's own may be as large as the others like.
      if (negotiation::has_sizes(asked.kind))
        asked.output_rows = std::max<int64_t>(asked.output_rows, 0);
      if (asked.output_rows >= 0) room = static_cast<size_t>(asked.output_rows) * row;
      const bool whole = asked.kind == CollectiveKind::kAllreduce ||
                         asked.kind == CollectiveKind::kReduce ||
                         asked.kind == CollectiveKind::kBroadcast;
      if (whole) room = static_cast<size_t>(element_count(asked.shape)) * size_of(asked.dtype);
      if (asked.kind == CollectiveKind::kScatter) scatter_to(&asked, *set);
    }
    const size_t bytes = static_cast<size_t>(element_count(asked.shape)) * size_of(asked.dtype);
    started.in = std::make_unique<std::byte[]>(bytes);
    request->in = started.in.get();
    if (room > 0 || asked.output_rows == 0 || asked.kind == CollectiveKind::kRecv) {
      started.out = std::make_unique<std::byte[]>(room);
      request->out = started.out.get();
    }
    expect(request->claim().ok(), "a new request can be claimed");
    started_.push_back(std::move(started));
    groups_->take(request.get(), now_);
  }

  // group_request takes roots as places.
  static void scatter_to(wire::Request* asked, const engine::ProcessSet& set) {
    const bool is_root = asked->root == 0;
    asked->splits.clear();
    if (!is_root) return;
    asked->splits.assign(set.ranks.size(), 0);
    asked->splits.back() = asked->shape[0];
  }

  // A word as a member could say it.
  void word(Input* input, uint8_t what, Rank rank) {
    GroupWord word;
    word.epoch = kEpoch;
    word.what = static_cast<GroupWord::What>(1 + what / 8 % 7);
    const auto numbers = input->number<uint8_t>();
    word.number = numbers % 4;
    if (word.what == GroupWord::What::kHello) {
      word.key = "g";
      for (const Rank member : list(numbers / 4 % 4)) word.ranks.push_back(member);
      word.channels = numbers & 16 ? GroupWord::kHasNone : GroupWord::kNeedsNone;
    } else {
      word.calls = input->number<uint8_t>() % 8;
      word.tag = numbers / 4 % 4;
      word.code = static_cast<Code>(numbers / 16);
      word.reason = "says so";
    }
    hear(groups_->on_control(rank, wire::encode(word)));
  }

  // Data, under a tag that this rank has used towards that peer: an entry, a call, or anything.
  void answer(Input* input, Peer* peer) {
    if (peer->tags.empty()) return;
    const auto how = input->number<uint8_t>();
    const transport::Tag tag = peer->tags[peer->tags.size() - 1 - how % 4 % peer->tags.size()];
    std::string body;
    const auto place = static_cast<Rank>(input->number<uint8_t>() % kRanks);
    const wire::Request asked = group_request(input, place, 2 + how / 4 % 2);
    if (how & 32) {
      const negotiation::GroupEntry entry = negotiation::entry_of({&asked, 1}, 0, 2 + how / 4 % 2);
      body.assign(reinterpret_cast<const char*>(&entry), sizeof(entry));
    } else if (how & 64) {
      wire::GroupCall call;
      call.requests.push_back(asked);
      body = wire::encode(call);
    } else if (how & 128) {
      body = last_body_;  // the same as this rank
    } else {
      body = std::string(input->bytes());
    }
    FrameHeader frame;
    frame.epoch = kEpoch;
    frame.tag = tag;
    frame.bytes = frame.total = body.size();
    ++peer->answers;
    peer->in->put(frame);
    peer->in->put(std::as_bytes(std::span(body)));
  }

  // What this rank has written to a peer, frame by frame.
  void look_at(Peer* peer) {
    const std::vector<std::byte>& bytes = peer->out->bytes;
    while (peer->seen + sizeof(FrameHeader) <= bytes.size()) {
      FrameHeader frame;
      std::memcpy(&frame, bytes.data() + peer->seen, sizeof(frame));
      const size_t body = transport::has_body(frame.type) ? frame.bytes : 0;
      if (peer->seen + sizeof(frame) + body > bytes.size()) return;
      const auto* at = reinterpret_cast<const char*>(bytes.data() + peer->seen + sizeof(frame));
      if (frame.type == FrameType::kData) last_body_.assign(at, body);
      if (frame.type == FrameType::kData || frame.type == FrameType::kGrant)
        peer->tags.push_back(frame.tag);
      peer->seen += sizeof(frame) + body;
    }
  }

  void advance() {
    for (int round = 0; round < 64 && over_.ok(); ++round) {
      bool moved = fabric_.transport->progress();
      moved |= groups_->step(now_);
      hear(groups_->failure());
      for (Peer& peer : peers_) look_at(&peer);
      if (!moved) return;
    }
  }

  Config config_;
  membership::Membership membership_;
  membership::HostMemory memory_;
  std::array<Peer, kRanks> peers_;
  membership::Fabric fabric_;
  engine::ProcessSetTable table_;
  std::unique_ptr<flight::FlightRecorder> flight_;
  timeline::Recorder recorder_;
  engine::RequestQueue queue_;
  engine::Finisher finisher_;
  std::deque<Started> started_;  // outlives the groups
  std::vector<ProcessSetPtr> sets_;
  std::string last_body_;
  std::unique_ptr<OrderedGroups> groups_;
  OrderedGroups::Time now_{};
  Status over_;
};

}  // namespace
}  // namespace rueda::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rueda::fuzz::Session().run(rueda::fuzz::Input(data, size));
  return 0;
}
