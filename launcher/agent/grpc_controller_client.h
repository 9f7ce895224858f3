// An agent's client of the controller, over its control connection.
//
// Says a sign of life every kHeartbeat; when the controller has said nothing for the silence limit,
// or the connection has ended, the ranks are to be killed. Where the connection lasts they go on
// without a controller, and what they have asked the store is asked again at the next. One thread.
// Borrows the connection.
#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/agent/control_connection.h"
#include "launcher/agent/newcomers.h"
#include "launcher/agent/store_streams.h"
#include "launcher/hosts/controller_client.h"
#include "launcher/hosts/lost_rank_wire.h"
#include "launcher/hosts/stream_relay.h"

namespace rueda::launcher {

class GrpcControllerClient : public ControllerClient {
 public:
  GrpcControllerClient(ControlConnection* client, double silence_seconds);

  void serve(ControlledHost* host) override { host_ = host; }
  Status open() override { return {}; }
  void failed(const std::string& why) override { failure_ = why; }
  Status attach(UniqueFd agent_end, MemberId member) override;
  OutputTaker* output_of(MemberId member, Rank rank) override;
  bool congested() const override;
  void add_to_poll(std::vector<pollfd>* fds) const override;
  int poll_limit_ms() const override;
  void work() override;
  void rank_started(const MemberStart& start, pid_t pid, const std::string& error) override;
  void rank_ended(const RankEnd& end) override;
  void rank_lost(const life::LostRank& lost) override;
  void rank_fenced(MemberId member) override;
  void say(const std::string& text) override;
  void report(HostReport report) override;
  void drained(int asked, int ranks) override;
  void count(const std::vector<RankCounters>& counters) override;
  Result<std::string> drain_host(const std::string& host) override;
  void leaves(const std::string& why) override;
  void finish() override;
  bool controller_was_lost() const override { return !goodbye_; }

  // The exit code that goes with failed().
  void set_failure_code(int code) { failure_code_ = code; }
  // The job's, once the controller has said goodbye; nothing when it has gone without.
  std::optional<int> job_code() const { return goodbye_ ? std::optional(job_code_) : std::nullopt; }

 private:
  using Clock = std::chrono::steady_clock;
  void beat(Clock::time_point now);
  void take_messages(Clock::time_point now);
  bool controller_is_lost(Clock::time_point now);
  void begin_session();
  void give_up();
  void send_store_bytes(MemberId member, std::string_view bytes, bool end);

  ControlConnection* const client_;
  ControlledHost* host_ = nullptr;
  const Clock::duration silence_;
  StreamRelay relay_;
  StoreStreams requests_;  // where the connection lasts
  int session_ = 0;
  bool gone_ = false;
  std::string why_leaves_;  // told to each controller
  Newcomers newcomers_;
  std::map<MemberId, std::unique_ptr<OutputTaker>> outputs_;
  Clock::time_point last_heard_, last_work_, last_beat_;
  bool kill_told_ = false;
  bool goodbye_ = false;
  std::string failure_;
  int failure_code_ = 0;
  int job_code_ = 0;
  std::deque<control::AgentMessage> unhurried_;  // sent one by one while nothing else is
  std::vector<RankCounters> counters_, counters_sent_;
};

}  // namespace rueda::launcher
