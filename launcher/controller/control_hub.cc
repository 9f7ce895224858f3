#include "launcher/controller/control_hub.h"

#include <algorithm>

#include "collectives/base/utf8.h"
#include "collectives/host/event_fd.h"
#include "launcher/controller/job_host.h"
#include "launcher/controller/succession.h"
#include "launcher/hosts/limits.h"
#include "launcher/hosts/ticket.h"

namespace rueda::launcher {

Hub::Hub(const ControlServer::Setup& setup, UniqueFd wake)
    : token_(setup.token),
      version_(setup.version),
      resumes_(setup.resumes),
      hosts_(setup.hosts),
      streams_(hosts_.size()),
      lines_(hosts_.size()),
      joined_(hosts_.size()),
      waiting_(hosts_.size()),
      takes_over_(setup.takes_over),
      wake_(std::move(wake)) {}

std::optional<int> Hub::resume(const control::Register& agent, AgentStream* stream) {
  if (!agent.has_resumes() || !same_secret(agent.token(), token_)) return std::nullopt;
  const std::lock_guard lock(mutex_);
  const int host = agent.host_index();
  if (host < 0 || host >= static_cast<int>(hosts_.size()) || !stream->peer().may_be(host))
    return std::nullopt;
  HostLine& line = lines_[static_cast<size_t>(host)];
  if (!line.is_open() || !same_secret(agent.resumes().secret(), line.secret())) return std::nullopt;
  AgentStream*& known = streams_[static_cast<size_t>(host)];
  if (known != nullptr) known->cancel();
  known = stream;
  line.acknowledged(agent.resumes().received());
  control::ControllerMessage first;
  *first.mutable_resumed() = line.resumed();
  stream->send(std::move(first));
  for (const control::ControllerMessage& message : line.kept()) stream->send(message);
  AgentEvent event;
  event.kind = AgentEvent::Kind::kResumed;
  event.host = host;
  queue(std::move(event));
  return host;
}

Result<int> Hub::admit(const control::Register& agent, AgentStream* stream) {
  if (!same_secret(agent.token(), token_))
    return Status(Code::kUnauthenticated, "the token is wrong");
  if (agent.version() != version_) {
    return failed_precondition("rueda " + agent.version() + " is installed there, " + version_ +
                               " here; install one version");
  }
  const std::lock_guard lock(mutex_);
  int host = agent.host_index();
  if (agent.has_holds()) {
    RUEDA_RETURN_IF_ERROR(make_place(host, agent.holds().host_name(), stream->peer()));
  } else if (takes_over_) {
    return unavailable("the job's controller was killed, and another one is taking over");
  }
  if (host < 0 && agent.named()) {
    RUEDA_ASSIGN_OR_RETURN(host, place_of(agent.host_name()));
  }
  if (host < 0) host = place_by_name(agent.host_name());
  if (host < 0 || host >= static_cast<int>(hosts_.size()))
    return failed_precondition("the job has no place for another host");
  if (!stream->peer().may_be(host)) {
    return Status(Code::kUnauthenticated,
                  "its certificate is not that of host " + hosts_[static_cast<size_t>(host)]);
  }
  // Whose connection has ended may come again with what it holds.
  const bool again = agent.has_holds() && streams_[static_cast<size_t>(host)] == nullptr;
  if (joined_[static_cast<size_t>(host)] && !again) {
    return Status(Code::kAlreadyExists,
                  "host " + hosts_[static_cast<size_t>(host)] + " of this job has joined already");
  }
  joined_[static_cast<size_t>(host)] = true;
  streams_[static_cast<size_t>(host)] = stream;
  return host;
}

size_t Hub::hosts() {
  const std::lock_guard lock(mutex_);
  return hosts_.size();
}

void Hub::add_host(const std::string& name) {
  const std::lock_guard lock(mutex_);
  add_place(name);
}

void Hub::taken_over() {
  const std::lock_guard lock(mutex_);
  takes_over_ = false;
}

void Hub::forget_host(int host) {
  const std::lock_guard lock(mutex_);
  lines_[static_cast<size_t>(host)].end();
}

bool Hub::knows_output(const control::OutputMessage& first, const Peer& peer) {
  if (!same_secret(first.token(), token_)) return false;
  const std::lock_guard lock(mutex_);
  if (first.host_index() < 0 || first.host_index() >= static_cast<int>(hosts_.size())) return false;
  const AgentStream* const stream = streams_[static_cast<size_t>(first.host_index())];
  return stream != nullptr && stream->peer().address == peer.address &&
         stream->peer().name == peer.name;
}

bool Hub::push(AgentEvent event, AgentStream* from, std::vector<AgentEvent> told) {
  const std::lock_guard lock(mutex_);
  if (closing_) return true;
  const auto host = static_cast<size_t>(event.host);
  if (streams_[host] != from) return true;  // it has another connection by now
  const bool is_end = event.kind == AgentEvent::Kind::kGone;
  if (is_end) streams_[host] = nullptr;
  if (event.kind == AgentEvent::Kind::kMessage) lines_[host].heard();
  if (event.message.has_heartbeat())
    lines_[host].acknowledged(event.message.heartbeat().received());
  queue(std::move(event));
  for (AgentEvent& one : told) queue(std::move(one));
  if (++waiting_[host] < kMaxEventsWaiting || is_end) return true;
  stopped_.push_back(from);
  return false;
}

bool Hub::push_output(control::OutputMessage message, int host, bool is_first, const Peer& peer,
                      OutputStream* from) {
  const std::lock_guard lock(mutex_);
  AgentStream* const stream = streams_[static_cast<size_t>(host)];
  HostLine& line = lines_[static_cast<size_t>(host)];
  const bool is_old =
      line.is_open() && (stream == nullptr || stream->peer().address != peer.address);
  // What has come by an old connection comes again by the next.
  if (closing_ || is_old) return true;
  if (!is_first && line.heard_output(message.data().size())) acknowledge(stream, &line);
  AgentEvent event;
  event.kind = AgentEvent::Kind::kOutput;
  event.host = host;
  output_waiting_ += message.data().size();
  event.output = std::move(message);
  queue(std::move(event));
  if (!output_held_ && output_waiting_ < kMaxOutputWaiting) return true;
  stopped_outputs_.push_back(from);
  return false;
}

std::vector<AgentEvent> Hub::take() {
  std::vector<AgentEvent> events;
  std::vector<AgentStream*> go_on;
  std::vector<OutputStream*> outputs_go_on;
  {
    const std::lock_guard lock(mutex_);
    host::clear_event_fd(wake_.get());
    events.swap(events_);
    std::fill(waiting_.begin(), waiting_.end(), 0);
    output_waiting_ = 0;
    go_on.swap(stopped_);
    if (!output_held_) outputs_go_on.swap(stopped_outputs_);
  }
  for (AgentStream* stream : go_on) stream->read_on();
  for (OutputStream* stream : outputs_go_on) stream->read_on();
  return events;
}

void Hub::hold_output(bool held) {
  std::vector<OutputStream*> go_on;
  {
    const std::lock_guard lock(mutex_);
    output_held_ = held;
    if (!held) go_on.swap(stopped_outputs_);
  }
  for (OutputStream* stream : go_on) stream->read_on();
}

void Hub::send(int host, control::ControllerMessage message) {
  const std::lock_guard lock(mutex_);
  AgentStream* const stream = streams_[static_cast<size_t>(host)];
  HostLine& line = lines_[static_cast<size_t>(host)];
  const bool begins = message.has_assign() || message.has_taken_over();
  if (begins && resumes_) {
    auto secret = make_token();
    line.begin(secret.ok() ? std::move(secret).value() : std::string());
    if (message.has_assign()) message.mutable_assign()->set_secret(line.secret());
    if (message.has_taken_over()) message.mutable_taken_over()->set_secret(line.secret());
  }
  if (!begins) line.said(message);
  if (stream != nullptr) stream->send(std::move(message));
}

void Hub::beat() {
  const std::lock_guard lock(mutex_);
  for (size_t host = 0; host < streams_.size(); ++host) {
    if (streams_[host] != nullptr && streams_[host]->idle())
      acknowledge(streams_[host], &lines_[host]);
  }
}

void Hub::close() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  hold_output(false);
  take();
}

void Hub::forget(AgentStream* stream) {
  const std::lock_guard lock(mutex_);
  for (AgentStream*& known : streams_) {
    if (known == stream) known = nullptr;
  }
  std::erase(stopped_, stream);
}

void Hub::forget(OutputStream* stream) {
  const std::lock_guard lock(mutex_);
  std::erase(stopped_outputs_, stream);
}

Result<int> Hub::place_of(const std::string& name) const {
  const auto found = std::find(hosts_.begin(), hosts_.end(), name);
  if (found != hosts_.end()) return static_cast<int>(found - hosts_.begin());
  return failed_precondition("the job has no host '" + printable_text(name, 256) +
                             "'; its hosts are " + name_hosts(hosts_));
}

int Hub::place_by_name(const std::string& name) const {
  const std::string brief = name.substr(0, name.find('.'));
  for (size_t i = 0; i < hosts_.size(); ++i) {
    if (!joined_[i] && (hosts_[i] == name || hosts_[i] == brief)) return static_cast<int>(i);
  }
  for (size_t i = 0; i < hosts_.size(); ++i) {
    if (!joined_[i]) return static_cast<int>(i);
  }
  return -1;
}

void Hub::acknowledge(AgentStream* stream, HostLine* line) {
  control::ControllerMessage message;
  *message.mutable_heartbeat() = line->acknowledgement();
  stream->send(std::move(message));
}

void Hub::add_place(const std::string& name) {
  hosts_.push_back(name);
  streams_.push_back(nullptr);
  lines_.emplace_back();
  joined_.push_back(false);
  waiting_.push_back(0);
}

Status Hub::make_place(int host, const std::string& name, const Peer& peer) {
  if (host < 0 || host >= static_cast<int>(Succession::kMostHosts) || !peer.may_be(host))
    return Status(Code::kUnauthenticated, "its certificate is not that of its host");
  while (host >= static_cast<int>(hosts_.size())) add_place("");
  if (hosts_[static_cast<size_t>(host)].empty()) hosts_[static_cast<size_t>(host)] = name;
  return {};
}

void Hub::queue(AgentEvent event) {
  events_.push_back(std::move(event));
  host::ring_event_fd(wake_.get());
}

}  // namespace rueda::launcher
