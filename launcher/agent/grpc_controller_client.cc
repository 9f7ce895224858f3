#include "launcher/agent/grpc_controller_client.h"

#include "launcher/hosts/limits.h"
#include "launcher/hosts/report_wire.h"
#include "launcher/job/exit_code.h"

namespace rueda::launcher {
namespace {

// What a rank writes goes to the controller as it is; it is cut into lines there.
class RemoteOutput : public OutputTaker {
 public:
  RemoteOutput(MemberId member, ControlConnection* client) : member_(member), client_(client) {}
  void take(Stream stream, std::string_view bytes) override {
    client_->output(member_, number(stream), bytes);
  }
  void end(Stream stream) override {
    if (!ended_[static_cast<int>(stream)]) client_->output(member_, number(stream), {});
    ended_[static_cast<int>(stream)] = true;
  }

 private:
  static int number(Stream stream) { return stream == Stream::kStdout ? 1 : 2; }

  const MemberId member_;
  ControlConnection* const client_;
  bool ended_[2] = {false, false};
};

}  // namespace

GrpcControllerClient::GrpcControllerClient(ControlConnection* client, double silence_seconds)
    : client_(client),
      silence_(std::chrono::duration_cast<Clock::duration>(
          std::chrono::duration<double>(silence_seconds))),
      newcomers_([client](control::AgentMessage message) { client->send(std::move(message)); }),
      last_heard_(Clock::now()),
      last_work_(last_heard_),
      last_beat_(last_heard_) {}

Status GrpcControllerClient::attach(UniqueFd agent_end, MemberId member) {
  relay_.add(member, std::move(agent_end));
  return {};
}

OutputTaker* GrpcControllerClient::output_of(MemberId member, Rank) {
  std::unique_ptr<OutputTaker>& output = outputs_[member];
  if (output == nullptr) output = std::make_unique<RemoteOutput>(member, client_);
  return output.get();
}

bool GrpcControllerClient::congested() const {
  return client_->output_waiting() >= kMaxOutputWaiting;
}

void GrpcControllerClient::add_to_poll(std::vector<pollfd>* fds) const {
  fds->push_back({client_->fd(), POLLIN, 0});
  relay_.add_to_poll(fds);
}

int GrpcControllerClient::poll_limit_ms() const { return static_cast<int>(kHeartbeat.count()); }

void GrpcControllerClient::beat(Clock::time_point now) {
  if (!unhurried_.empty() && client_->idle()) {
    client_->send(std::move(unhurried_.front()));
    unhurried_.pop_front();
  }
  if (now - last_beat_ < kHeartbeat || !client_->idle()) return;
  last_beat_ = now;
  control::AgentMessage message;
  auto* beat = message.mutable_heartbeat();
  if (counters_ != counters_sent_) {
    for (const RankCounters& one : counters_) *beat->add_ranks() = to_wire(one);
    counters_sent_ = counters_;
  }
  client_->send(std::move(message));
}

void GrpcControllerClient::take_messages(Clock::time_point now) {
  gone_ = client_->gone();  // asked before: its last word, the goodbye, is taken first
  for (const control::ControllerMessage& message : client_->take()) {
    last_heard_ = now;
    if (message.has_store_bytes()) {
      const auto& bytes = message.store_bytes();
      if (client_->lasts())
        relay_.deliver(bytes.member(),
                       requests_.from_store(bytes.member(), bytes.data(), bytes.end()),
                       bytes.end());
      else
        relay_.deliver(bytes.member(), bytes.data(), bytes.end());
    } else if (message.has_probe_task()) {
      newcomers_.begin(message.probe_task());
    } else if (message.has_probe_over()) {
      newcomers_.end();
    } else if (message.has_taken_over()) {
      begin_session();
    } else if (message.has_goodbye()) {
      goodbye_ = true;
      job_code_ = message.goodbye().exit_code();
    } else if (const auto order = order_from_wire(message)) {
      host_->follow(*order);
    }
  }
}

bool GrpcControllerClient::controller_is_lost(Clock::time_point now) {
  if (client_->seeks()) last_heard_ = now;
  if (now - last_heard_ > kSuspectAfter) client_->doubt();
  return gone_ || now - last_heard_ > silence_;
}

void GrpcControllerClient::work() {
  const auto now = Clock::now();
  // While we ourselves did not run (stopped, or a host under pressure) nobody was silent.
  if (now - last_work_ > 2 * kHeartbeat) last_heard_ += now - last_work_;
  last_work_ = now;
  take_messages(now);
  const auto send = [this](MemberId member, std::string_view bytes, bool end) {
    send_store_bytes(member, bytes, end);
  };
  relay_.pump([&](MemberId member, std::string_view bytes, bool end) {
    if (client_->lasts())
      requests_.from_rank(member, bytes, end, send);
    else
      send_store_bytes(member, bytes, end);
  });
  beat(now);
  // A goodbye while ranks run: the job has ended without this host, of which nothing was heard.
  if (!kill_told_ && (goodbye_ || controller_is_lost(now))) {
    kill_told_ = true;
    if (!goodbye_ && client_->lasts() && client_->gone())
      give_up();
    else
      host_->follow({Order::Kind::kKill, 0, {}});
  }
}

void GrpcControllerClient::send_store_bytes(MemberId member, std::string_view bytes, bool end) {
  control::AgentMessage message;
  auto* carried = message.mutable_store_bytes();
  carried->set_member(member);
  carried->set_data(bytes.data(), bytes.size());
  carried->set_end(end);
  client_->send(std::move(message));
}

// Another controller: it knows nothing of what is under way.
void GrpcControllerClient::begin_session() {
  session_ = client_->session();
  last_heard_ = Clock::now();
  newcomers_.end();
  unhurried_.clear();
  counters_sent_.clear();
  const auto broken =
      requests_.ask_again([this](MemberId member, std::string_view bytes, bool end) {
        send_store_bytes(member, bytes, end);
      });
  for (const MemberId member : broken) relay_.drop(member);
  if (!why_leaves_.empty()) leaves(why_leaves_);
}

// No controller has come: the ranks hear why, and have the grace period to end.
void GrpcControllerClient::give_up() {
  fail(0, client_->why_gone() + "; the ranks of this host are stopped");
  Order order;
  order.kind = Order::Kind::kRankLost;
  order.lost.rank = -1;
  order.lost.cause.set(client_->why_gone());
  order.lost.cause_is_final = 1;
  host_->follow(order);
  order = {};
  order.kind = Order::Kind::kJobOver;
  order.exit_code = kUnreachable;
  host_->follow(order);
}

void GrpcControllerClient::rank_started(const MemberStart& start, pid_t pid,
                                        const std::string& error) {
  control::AgentMessage message;
  auto* started = message.mutable_rank_started();
  started->set_member(start.member);
  started->set_rank(start.place.rank);
  started->set_pid(pid);
  started->set_error(error);
  client_->send(std::move(message));
}

void GrpcControllerClient::rank_ended(const RankEnd& end) {
  control::AgentMessage message;
  auto* ended = message.mutable_rank_ended();
  ended->set_member(end.member);
  ended->set_rank(end.rank);
  ended->set_pid(end.pid);
  ended->set_wait_status(end.wait_status);
  ended->set_noticed(end.noticed);
  ended->set_stopped(end.stopped);
  ended->set_removed(end.removed);
  ended->set_hint(end.hint);
  ended->set_resident_peak(end.resident_peak);
  client_->send(std::move(message));
}

void GrpcControllerClient::rank_lost(const life::LostRank& lost) {
  control::AgentMessage message;
  *message.mutable_rank_lost() = to_wire(lost);
  client_->send(std::move(message));
}

void GrpcControllerClient::rank_fenced(MemberId member) {
  control::AgentMessage message;
  message.mutable_rank_fenced()->set_member(member);
  client_->send(std::move(message));
}

void GrpcControllerClient::say(const std::string& text) {
  control::AgentMessage message;
  message.mutable_say()->set_text(text);
  client_->send(std::move(message));
}

void GrpcControllerClient::report(HostReport report) {
  for (control::AgentMessage& message : to_wire(std::move(report)))
    unhurried_.push_back(std::move(message));
}

void GrpcControllerClient::drained(int asked, int ranks) {
  control::AgentMessage message;
  message.mutable_drained()->set_asked(asked);
  message.mutable_drained()->set_ranks(ranks);
  client_->send(std::move(message));
}

Result<std::string> GrpcControllerClient::drain_host(const std::string&) {
  return failed_precondition("hosts are drained on the machine where ruedarun runs");
}

void GrpcControllerClient::leaves(const std::string& why) {
  why_leaves_ = why;
  control::AgentMessage message;
  message.mutable_leaves()->set_why(why);
  client_->send(std::move(message));
}

void GrpcControllerClient::count(const std::vector<RankCounters>& counters) {
  counters_ = counters;
}

void GrpcControllerClient::finish() {
  client_->finish_output();
  std::optional<int> told;  // whom; another one has to hear it, too
  while (!goodbye_ && !controller_is_lost(Clock::now())) {
    // The controller must have all output before it hears that there is no more.
    if (told != session_ && session_ == client_->session() && client_->output_done()) {
      told = session_;
      control::AgentMessage message;
      message.mutable_finished()->set_failure(failure_);
      message.mutable_finished()->set_exit_code(failure_code_);
      client_->send(std::move(message));
    }
    std::vector<pollfd> fds;
    add_to_poll(&fds);
    poll(fds.data(), fds.size(), poll_limit_ms());
    work();
  }
}

}  // namespace rueda::launcher
