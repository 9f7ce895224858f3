// TwoSides: two TagTransports over pipes, driven by this thread.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collectives/transport/tag_transport.h"
#include "tests/transport/messages.h"
#include "tests/transport/pipe_connection.h"

namespace rueda::transport {

struct TwoSides {
  std::shared_ptr<Pipe> there = std::make_shared<Pipe>();
  std::shared_ptr<Pipe> back = std::make_shared<Pipe>();
  host::SleepWord words[2];
  std::vector<host::Doorbell> bells;
  std::vector<host::EventLoop> loops;
  std::vector<std::unique_ptr<TagTransport>> sides;
  std::vector<Status> ends;        // seen by rank 1
  std::vector<Status> ends_at_0;   // seen by rank 0
  std::vector<std::string> heard;  // control messages of rank 0, by rank 1
  std::vector<Status> verdicts;    // of rank 0, by rank 1

  // remote: the pipes count as connections between hosts.
  explicit TwoSides(bool remote) {
    for (int i = 0; i < 2; ++i) {
      bells.push_back(std::move(host::Doorbell::create(&words[i]).value()));
      loops.push_back(std::move(host::EventLoop::create().value()));
    }
    for (int i = 0; i < 2; ++i) {
      std::vector<TagTransport::Peer> peers(2);
      const auto at = static_cast<size_t>(i);
      peers[at].name = "this rank";
      peers[1 - at] = {i == 0 ? std::make_unique<PipeConnection>(there, back, remote)
                              : std::make_unique<PipeConnection>(back, there, remote),
                       "rank " + std::to_string(1 - i) + " (on another host)"};
      sides.push_back(
          std::make_unique<TagTransport>(i, 7, std::move(peers), &loops[at], &bells[at]));
    }
    TransportEvents events;
    events.on_peer_end = [this](Rank, const Status& status) { ends.push_back(status); };
    events.on_control = [this](Rank, std::string_view text) { heard.emplace_back(text); };
    events.on_abort = [this](Rank, const Status& verdict) { verdicts.push_back(verdict); };
    sides[1]->set_events(events);
    events = {};
    events.on_peer_end = [this](Rank, const Status& status) { ends_at_0.push_back(status); };
    sides[0]->set_events(events);
  }
  TagTransport* at(size_t side) { return sides[side].get(); }
  void open_taps() {
    there->room = back->room = Pipe::kUnlimited;
    there->readable_now = back->readable_now = Pipe::kUnlimited;
    run();
  }
  void run() {
    while (sides[0]->progress() | sides[1]->progress()) {
    }
  }
};

}  // namespace rueda::transport
