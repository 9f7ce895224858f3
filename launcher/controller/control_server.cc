#include "launcher/controller/control_server.h"

#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>
#include <proto/control.grpc.pb.h>

#include <algorithm>
#include <deque>
#include <mutex>

#include "collectives/base/utf8.h"
#include "collectives/host/event_fd.h"
#include "launcher/controller/acceptor.h"
#include "launcher/controller/host_line.h"
#include "launcher/controller/job_host.h"
#include "launcher/controller/succession.h"
#include "launcher/hosts/limits.h"
#include "launcher/hosts/ticket.h"

namespace rueda::launcher {
namespace {

class Hub;

// Who is at the other end of a call, as TLS has proved it.
struct Peer {
  explicit Peer(const grpc::CallbackServerContext& context) : address(context.peer()) {
    const auto names = context.auth_context()->FindPropertyValues(GRPC_X509_CN_PROPERTY_NAME);
    if (names.size() == 1) name = std::string(names.front().data(), names.front().size());
  }
  bool may_be(int host) const { return name == kSharedAgentName || name == agent_name(host); }

  std::string name;     // in its certificate
  std::string address;  // of its connection
};

// One agent's Attach. Deletes itself when gRPC is done with it.
class AgentStream
    : public grpc::ServerBidiReactor<control::AgentMessage, control::ControllerMessage> {
 public:
  AgentStream(Hub* hub, grpc::CallbackServerContext* context)
      : hub_(hub), context_(context), peer_(*context) {
    StartRead(&incoming_);
  }

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;

  void send(control::ControllerMessage message);
  bool idle();
  void read_on() { StartRead(&incoming_); }
  // Ends it without a word: another has taken its place.
  void cancel() { context_->TryCancel(); }
  const Peer& peer() const { return peer_; }

 private:
  void refuse(const std::string& reason);
  void close(const grpc::Status& status);

  Hub* const hub_;
  grpc::CallbackServerContext* const context_;
  const Peer peer_;
  control::AgentMessage incoming_;
  int host_ = -1;
  std::mutex mutex_;  // of what follows
  std::deque<control::ControllerMessage> outgoing_;
  bool writing_ = false;
  bool closed_ = false;
  std::optional<grpc::Status> close_with_;  // once everything is written
};

// One agent's Output.
class OutputStream : public grpc::ServerReadReactor<control::OutputMessage> {
 public:
  OutputStream(Hub* hub, Peer peer) : hub_(hub), peer_(std::move(peer)) { StartRead(&incoming_); }
  void OnReadDone(bool ok) override;
  void OnDone() override;
  void read_on() { StartRead(&incoming_); }

 private:
  Hub* const hub_;
  const Peer peer_;
  control::OutputMessage incoming_;
  int host_ = -1;
};

// Everything that the streams share. Streams call it from gRPC's threads.
class Hub {
 public:
  Hub(const ControlServer::Setup& setup, UniqueFd wake)
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

  // Goes on where a connection of this agent has ended, or seems to have; else it is as any other.
  // Returns its place.
  std::optional<int> resume(const control::Register& agent, AgentStream* stream) {
    if (!agent.has_resumes() || !same_secret(agent.token(), token_)) return std::nullopt;
    const std::lock_guard lock(mutex_);
    const int host = agent.host_index();
    if (host < 0 || host >= static_cast<int>(hosts_.size()) || !stream->peer().may_be(host))
      return std::nullopt;
    HostLine& line = lines_[static_cast<size_t>(host)];
    if (!line.is_open() || !same_secret(agent.resumes().secret(), line.secret()))
      return std::nullopt;
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

  // The place of an agent that has introduced itself, or why it has none.
  Result<int> admit(const control::Register& agent, AgentStream* stream) {
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
      return Status(Code::kAlreadyExists, "host " + hosts_[static_cast<size_t>(host)] +
                                              " of this job has joined already");
    }
    joined_[static_cast<size_t>(host)] = true;
    streams_[static_cast<size_t>(host)] = stream;
    return host;
  }

  size_t hosts() {
    const std::lock_guard lock(mutex_);
    return hosts_.size();
  }
  void add_host(const std::string& name) {
    const std::lock_guard lock(mutex_);
    add_place(name);
  }
  void taken_over() {
    const std::lock_guard lock(mutex_);
    takes_over_ = false;
  }

  // The host is lost, or let go: what is kept for another connection is forgotten.
  void forget_host(int host) {
    const std::lock_guard lock(mutex_);
    lines_[static_cast<size_t>(host)].end();
  }

  // It must come over the connection of the host that it is said to be of.
  bool knows_output(const control::OutputMessage& first, const Peer& peer) {
    if (!same_secret(first.token(), token_)) return false;
    const std::lock_guard lock(mutex_);
    if (first.host_index() < 0 || first.host_index() >= static_cast<int>(hosts_.size()))
      return false;
    const AgentStream* const stream = streams_[static_cast<size_t>(first.host_index())];
    return stream != nullptr && stream->peer().address == peer.address &&
           stream->peer().name == peer.name;
  }

  // Returns whether the stream may read on now; else it is told with read_on(). `told`: what comes
  // with it.
  bool push(AgentEvent event, AgentStream* from, std::vector<AgentEvent> told = {}) {
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

  // `is_first`: it brings no output.
  bool push_output(control::OutputMessage message, int host, bool is_first, const Peer& peer,
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

  std::vector<AgentEvent> take() {
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

  void hold_output(bool held) {
    std::vector<OutputStream*> go_on;
    {
      const std::lock_guard lock(mutex_);
      output_held_ = held;
      if (!held) go_on.swap(stopped_outputs_);
    }
    for (OutputStream* stream : go_on) stream->read_on();
  }

  void send(int host, control::ControllerMessage message) {
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

  void beat() {
    const std::lock_guard lock(mutex_);
    for (size_t host = 0; host < streams_.size(); ++host) {
      if (streams_[host] != nullptr && streams_[host]->idle())
        acknowledge(streams_[host], &lines_[host]);
    }
  }

  // From now on nothing is queued and no stream is held, so that each reads its end.
  void close() {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    hold_output(false);
    take();
  }

  // The stream is about to be deleted.
  void forget(AgentStream* stream) {
    const std::lock_guard lock(mutex_);
    for (AgentStream*& known : streams_) {
      if (known == stream) known = nullptr;
    }
    std::erase(stopped_, stream);
  }
  void forget(OutputStream* stream) {
    const std::lock_guard lock(mutex_);
    std::erase(stopped_outputs_, stream);
  }

  int fd() const { return wake_.get(); }

 private:
  Result<int> place_of(const std::string& name) const {
    const auto found = std::find(hosts_.begin(), hosts_.end(), name);
    if (found != hosts_.end()) return static_cast<int>(found - hosts_.begin());
    return failed_precondition("the job has no host '" + printable_text(name, 256) +
                               "'; its hosts are " + name_hosts(hosts_));
  }
  int place_by_name(const std::string& name) const {
    const std::string brief = name.substr(0, name.find('.'));
    for (size_t i = 0; i < hosts_.size(); ++i) {
      if (!joined_[i] && (hosts_[i] == name || hosts_[i] == brief)) return static_cast<int>(i);
    }
    for (size_t i = 0; i < hosts_.size(); ++i) {
      if (!joined_[i]) return static_cast<int>(i);
    }
    return -1;
  }
  // A sign of life.
  static void acknowledge(AgentStream* stream, HostLine* line) {
    control::ControllerMessage message;
    *message.mutable_heartbeat() = line->acknowledgement();
    stream->send(std::move(message));
  }
  void add_place(const std::string& name) {
    hosts_.push_back(name);
    streams_.push_back(nullptr);
    lines_.emplace_back();
    joined_.push_back(false);
    waiting_.push_back(0);
  }
  // Of a host that was in the job before us: its certificate says the number, its agent the name.
  Status make_place(int host, const std::string& name, const Peer& peer) {
    if (host < 0 || host >= static_cast<int>(Succession::kMostHosts) || !peer.may_be(host))
      return Status(Code::kUnauthenticated, "its certificate is not that of its host");
    while (host >= static_cast<int>(hosts_.size())) add_place("");
    if (hosts_[static_cast<size_t>(host)].empty()) hosts_[static_cast<size_t>(host)] = name;
    return {};
  }
  void queue(AgentEvent event) {
    events_.push_back(std::move(event));
    host::ring_event_fd(wake_.get());
  }

  const std::string token_, version_;
  const bool resumes_;
  std::mutex mutex_;  // of what follows; a stream's own mutex may be taken under it
  std::vector<std::string> hosts_;
  std::vector<AgentStream*> streams_;
  std::vector<HostLine> lines_;
  std::vector<bool> joined_;
  std::vector<size_t> waiting_;
  std::vector<AgentEvent> events_;
  std::vector<AgentStream*> stopped_;
  std::vector<OutputStream*> stopped_outputs_;
  size_t output_waiting_ = 0;
  bool output_held_ = false;
  bool closing_ = false;
  bool takes_over_ = false;
  const UniqueFd wake_;
};

void AgentStream::OnReadDone(bool ok) {
  if (!ok) {
    if (host_ >= 0) {
      AgentEvent event;
      event.host = host_;
      event.text = "its connection has ended";
      hub_->push(std::move(event), this);
    }
    close(grpc::Status::OK);
    return;
  }
  AgentEvent event;
  event.kind = AgentEvent::Kind::kMessage;
  if (host_ < 0 && incoming_.has_register_()) {
    if (const auto resumed = hub_->resume(incoming_.register_(), this)) {
      host_ = *resumed;
      incoming_.Clear();
      return StartRead(&incoming_);
    }
  }
  std::vector<AgentEvent> told;
  if (host_ < 0) {
    const auto place = incoming_.has_register_() ? hub_->admit(incoming_.register_(), this)
                                                 : Status(Code::kUnauthenticated, "no token");
    if (!place.ok()) return refuse(place.status().message());
    host_ = place.value();
    incoming_.mutable_register_()->clear_token();
    event.kind = AgentEvent::Kind::kRegistered;
    if (incoming_.register_().has_holds()) {
      for (auto& message : *incoming_.mutable_register_()->mutable_holds()->mutable_told()) {
        AgentEvent& one = told.emplace_back();
        one.kind = AgentEvent::Kind::kMessage;
        one.host = host_;
        one.message = std::move(message);
      }
    }
  }
  event.host = host_;
  event.message = std::move(incoming_);
  incoming_.Clear();
  if (hub_->push(std::move(event), this, std::move(told))) StartRead(&incoming_);
}

void AgentStream::send(control::ControllerMessage message) {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  outgoing_.push_back(std::move(message));
  if (writing_) return;
  writing_ = true;
  StartWrite(&outgoing_.front());
}

bool AgentStream::idle() {
  const std::lock_guard lock(mutex_);
  return !writing_ && !closed_;
}

void AgentStream::OnWriteDone(bool ok) {
  const std::lock_guard lock(mutex_);
  outgoing_.pop_front();
  writing_ = ok && !closed_ && !outgoing_.empty();
  if (writing_) {
    StartWrite(&outgoing_.front());
  } else if (close_with_ && !closed_) {
    closed_ = true;
    Finish(*close_with_);
  }
}

void AgentStream::refuse(const std::string& reason) {
  close({grpc::StatusCode::UNAUTHENTICATED, reason});
}

void AgentStream::close(const grpc::Status& status) {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  if (writing_ && status.ok()) {
    close_with_ = status;
    return;
  }
  closed_ = true;
  Finish(status);
}

void AgentStream::OnDone() {
  hub_->forget(this);
  delete this;
}

void OutputStream::OnReadDone(bool ok) {
  if (!ok) return Finish(grpc::Status::OK);
  const bool is_first = host_ < 0;
  if (is_first) {
    if (!hub_->knows_output(incoming_, peer_))
      return Finish({grpc::StatusCode::UNAUTHENTICATED, "the token is wrong"});
    host_ = incoming_.host_index();
  }
  control::OutputMessage message = std::move(incoming_);
  incoming_.Clear();
  if (hub_->push_output(std::move(message), host_, is_first, peer_, this)) StartRead(&incoming_);
}

void OutputStream::OnDone() {
  hub_->forget(this);
  delete this;
}

class Service : public control::Control::CallbackService {
 public:
  explicit Service(Hub* hub) : hub_(hub) {}
  grpc::ServerBidiReactor<control::AgentMessage, control::ControllerMessage>* Attach(
      grpc::CallbackServerContext* context) override {
    return new AgentStream(hub_, context);
  }
  grpc::ServerReadReactor<control::OutputMessage>* Output(grpc::CallbackServerContext* context,
                                                          control::OutputEnd*) override {
    return new OutputStream(hub_, Peer(*context));
  }

 private:
  Hub* const hub_;
};

class GrpcControlServer : public ControlServer {
 public:
  GrpcControlServer(const Setup& setup, UniqueFd wake)
      : listen_on_(setup.addresses),
        port_(setup.port),
        hub_(setup, std::move(wake)),
        service_(&hub_) {}
  ~GrpcControlServer() override { stop(); }

  Status open(Setup setup) {
    RUEDA_ASSIGN_OR_RETURN(acceptor_, setup.bound.empty()
                                          ? Acceptor::listen(setup.addresses, setup.port)
                                          : Acceptor::listen(std::move(setup.bound)));
    grpc::SslServerCredentialsOptions tls(
        GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    tls.pem_root_certs = setup.certificates.authority;
    tls.pem_key_cert_pairs.push_back(
        {setup.certificates.controller.private_key, setup.certificates.controller.certificate});
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(kMaxControlBytes);
    builder.AddChannelArgument("grpc.server_handshake_timeout_ms",
                               static_cast<int>(1000 * kHandshakeLimit.count()));
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 8192);
    builder.RegisterService(&service_);
    auto door = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
        grpc::SslServerCredentials(tls));
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return internal_error("gRPC's server cannot be started");
    door_ = std::move(door);
    accept();
    return {};
  }

  const std::vector<std::string>& addresses() const override { return acceptor_->addresses(); }
  int fd() const override { return hub_.fd(); }
  std::vector<AgentEvent> take() override { return hub_.take(); }
  void send(int host, control::ControllerMessage message) override {
    hub_.send(host, std::move(message));
  }
  void beat() override { hub_.beat(); }
  void hold_output(bool held) override { hub_.hold_output(held); }
  void stop_listening() override {
    acceptor_->stop();
    listens_ = false;
  }
  Status listen() override {
    if (listens_) return {};
    RUEDA_ASSIGN_OR_RETURN(acceptor_, Acceptor::listen(listen_on_, port_));
    accept();
    return {};
  }
  Status listen_for_return(std::vector<ListeningSocket> bound) override {
    if (return_acceptor_ != nullptr) return {};
    if (bound.empty()) return listen();
    RUEDA_ASSIGN_OR_RETURN(return_acceptor_, Acceptor::listen(std::move(bound)));
    accept(return_acceptor_.get());
    return {};
  }
  void end_return() override { return_acceptor_.reset(); }
  void forget_host(int host) override { hub_.forget_host(host); }
  void add_host(const std::string& name) override { hub_.add_host(name); }
  void taken_over() override { hub_.taken_over(); }
  void stop() override {
    if (acceptor_ != nullptr) acceptor_->stop();
    return_acceptor_.reset();
    if (server_ == nullptr) return;
    hub_.close();
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
    server_.reset();
  }

 private:
  void accept() {
    accept(acceptor_.get());
    listens_ = true;
  }
  void accept(Acceptor* acceptor) {
    acceptor->start(
        [door = door_](int listener, UniqueFd connection) {
          grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
          parameters.listener_fd = listener;
          parameters.fd = connection.release();
          door->HandleNewConnection(&parameters);
        },
        hub_.hosts());
  }

  const std::vector<std::string> listen_on_;
  const int port_;
  Hub hub_;
  Service service_;
  std::shared_ptr<grpc::experimental::ExternalConnectionAcceptor> door_;
  std::unique_ptr<Acceptor> acceptor_, return_acceptor_;
  bool listens_ = false;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

Result<std::unique_ptr<ControlServer>> ControlServer::start(Setup setup) {
  gpr_set_log_function([](gpr_log_func_args*) {});  // strangers must not fill the user's terminal
  RUEDA_ASSIGN_OR_RETURN(UniqueFd wake, host::make_event_fd());
  auto server = std::make_unique<GrpcControlServer>(setup, std::move(wake));
  RUEDA_RETURN_IF_ERROR(server->open(std::move(setup)));
  return std::unique_ptr<ControlServer>(std::move(server));
}

}  // namespace rueda::launcher
