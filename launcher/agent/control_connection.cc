#include "launcher/agent/control_connection.h"

#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>
#include <proto/control.grpc.pb.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "collectives/base/unique_fd.h"
#include "collectives/host/event_fd.h"
#include "launcher/hosts/addresses.h"
#include "launcher/hosts/answering.h"
#include "launcher/hosts/late_start.h"
#include "launcher/hosts/limits.h"

namespace rueda::launcher {
namespace {

// Where one answers it is not waited longer for others, which may be cut off.
constexpr std::chrono::milliseconds kGrace{100};

// What the two streams and the agent's loop share.
class Mailbox {
 public:
  explicit Mailbox(UniqueFd wake) : wake_(std::move(wake)) {}
  int fd() const { return wake_.get(); }
  void wake() { host::ring_event_fd(wake_.get()); }
  void calm() { host::clear_event_fd(wake_.get()); }

 private:
  const UniqueFd wake_;
};

using TimePoint = std::chrono::steady_clock::time_point;

// Whether the condition has come true; nullopt: waits for ever.
template <typename Condition>
bool wait_until(std::mutex* mutex, std::condition_variable* changed, std::optional<TimePoint> until,
                Condition condition) {
  std::unique_lock lock(*mutex);
  if (until) return changed->wait_until(lock, *until, condition);
  changed->wait(lock, condition);
  return true;
}

// Attach. Its context and itself must live until OnDone; wait() does.
class AgentCall
    : public grpc::ClientBidiReactor<control::AgentMessage, control::ControllerMessage> {
 public:
  AgentCall(control::Control::Stub* stub, Mailbox* mailbox) : mailbox_(mailbox) {
    stub->async()->Attach(&context_, this);
    AddHold();  // writes come from the loop
    StartRead(&incoming_);
    StartCall();
  }

  void OnReadDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    if (!ok) {
      gone_ = true;  // send() starts nothing from here on
      RemoveHold();
      mailbox_->wake();
      return;
    }
    arrived_.push_back(std::move(incoming_));
    incoming_.Clear();
    StartRead(&incoming_);
    mailbox_->wake();
  }
  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    outgoing_.pop_front();
    if (!ok) outgoing_.clear();
    writing_ = !outgoing_.empty();
    if (writing_) StartWrite(&outgoing_.front());
    if (!writing_) mailbox_->wake();
  }
  void OnDone(const grpc::Status& status) override {
    const std::lock_guard lock(mutex_);
    gone_ = done_ = true;
    why_ = status.ok() ? "the controller has ended the connection" : status.error_message();
    mailbox_->wake();
    changed_.notify_all();
  }

  void send(control::AgentMessage message) {
    const std::lock_guard lock(mutex_);
    if (gone_) return;
    outgoing_.push_back(std::move(message));
    if (writing_) return;
    writing_ = true;
    StartWrite(&outgoing_.front());
  }
  std::vector<control::ControllerMessage> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(arrived_, {});
  }
  void put_back(std::vector<control::ControllerMessage> messages) {
    const std::lock_guard lock(mutex_);
    arrived_.insert(arrived_.begin(), std::make_move_iterator(messages.begin()),
                    std::make_move_iterator(messages.end()));
    mailbox_->wake();
  }
  bool idle() const {
    const std::lock_guard lock(mutex_);
    return !writing_;
  }
  bool gone() const {
    const std::lock_guard lock(mutex_);
    return gone_;
  }
  // Known a moment after gone().
  std::string why() const {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(1), [&] { return done_; });
    return done_ ? why_ : "the connection has ended";
  }
  bool wait(std::optional<TimePoint> until) {
    context_.TryCancel();
    return wait_until(&mutex_, &changed_, until, [&] { return done_; });
  }

 private:
  Mailbox* const mailbox_;
  grpc::ClientContext context_;
  control::ControllerMessage incoming_;
  mutable std::mutex mutex_;  // of what follows
  mutable std::condition_variable changed_;
  std::deque<control::AgentMessage> outgoing_;
  std::vector<control::ControllerMessage> arrived_;
  bool writing_ = false, gone_ = false, done_ = false;
  std::string why_;
};

// Output.
class OutputCall : public grpc::ClientWriteReactor<control::OutputMessage> {
 public:
  OutputCall(control::Control::Stub* stub, Mailbox* mailbox) : mailbox_(mailbox) {
    stub->async()->Output(&context_, &end_, this);
    AddHold();
    StartCall();
  }

  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    waiting_ -= outgoing_.front().data().size();
    outgoing_.pop_front();
    if (!ok) {
      broken_ = true;
      outgoing_.clear();
      waiting_ = 0;
    }
    writing_ = !outgoing_.empty();
    if (writing_) {
      StartWrite(&outgoing_.front());
    } else if (finishing_ && !broken_) {
      StartWritesDone();
    }
    if (waiting_ < kMaxOutputWaiting) mailbox_->wake();
  }
  void OnDone(const grpc::Status& status) override {
    const std::lock_guard lock(mutex_);
    whole_ = status.ok() && !broken_;
    broken_ = done_ = true;
    mailbox_->wake();
    changed_.notify_all();
  }

  void send(control::OutputMessage message) {
    const std::lock_guard lock(mutex_);
    if (broken_ || finishing_) return;
    waiting_ += message.data().size();
    outgoing_.push_back(std::move(message));
    if (writing_) return;
    writing_ = true;
    StartWrite(&outgoing_.front());
  }
  size_t waiting() const {
    const std::lock_guard lock(mutex_);
    return waiting_;
  }
  void finish() {
    const std::lock_guard lock(mutex_);
    if (finishing_) return;
    finishing_ = true;
    if (!writing_ && !broken_) StartWritesDone();
    RemoveHold();
  }
  // All of it has come to the controller.
  bool done() const {
    const std::lock_guard lock(mutex_);
    return whole_;
  }
  bool wait(std::optional<TimePoint> until) {
    context_.TryCancel();
    finish();
    return wait_until(&mutex_, &changed_, until, [&] { return done_; });
  }

 private:
  Mailbox* const mailbox_;
  grpc::ClientContext context_;
  control::OutputEnd end_;
  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::deque<control::OutputMessage> outgoing_;
  size_t waiting_ = 0;
  bool writing_ = false, finishing_ = false, broken_ = false, done_ = false, whole_ = false;
};

class GrpcControlConnection : public ControlConnection {
 public:
  GrpcControlConnection(std::string address, std::string token,
                        std::shared_ptr<grpc::Channel> channel, UniqueFd wake)
      : address_(std::move(address)),
        token_(std::move(token)),
        mailbox_(std::move(wake)),
        stub_(control::Control::NewStub(channel)),
        agent_(stub_.get(), &mailbox_) {}
  ~GrpcControlConnection() override { wait(std::nullopt); }

  const std::string& address() const override { return address_; }
  int fd() const override { return mailbox_.fd(); }
  std::vector<control::ControllerMessage> take() override {
    mailbox_.calm();
    return agent_.take();
  }
  void put_back(std::vector<control::ControllerMessage> messages) override {
    agent_.put_back(std::move(messages));
  }
  bool gone() const override { return agent_.gone(); }
  std::string why_gone() const override { return agent_.why(); }
  void send(control::AgentMessage message) override {
    if (message.has_register_()) message.mutable_register_()->set_token(token_);
    agent_.send(std::move(message));
  }
  bool idle() const override { return agent_.idle(); }
  void open_output(int host_index) override {
    output_ = std::make_unique<OutputCall>(stub_.get(), &mailbox_);
    control::OutputMessage first;
    first.set_token(token_);
    first.set_host_index(host_index);
    output_->send(std::move(first));
  }
  void output(MemberId member, int stream, std::string_view bytes) override {
    const bool end = bytes.empty();
    do {
      control::OutputMessage message;
      message.set_member(member);
      message.set_stream(stream);
      message.set_end(end);
      const std::string_view piece = bytes.substr(0, kMaxOutputPiece);
      message.set_data(piece.data(), piece.size());
      bytes.remove_prefix(piece.size());
      output_->send(std::move(message));
    } while (!bytes.empty());
  }
  size_t output_waiting() const override { return output_ == nullptr ? 0 : output_->waiting(); }
  void finish_output() override {
    if (output_ != nullptr) output_->finish();
  }
  bool output_done() const override { return output_ == nullptr || output_->done(); }
  bool close(std::chrono::milliseconds limit) override {
    return wait(std::chrono::steady_clock::now() + limit);
  }

 private:
  bool wait(std::optional<TimePoint> until) {
    const bool output_ended = output_ == nullptr || output_->wait(until);
    return agent_.wait(until) && output_ended;
  }

  const std::string address_, token_;
  Mailbox mailbox_;
  const std::unique_ptr<control::Control::Stub> stub_;
  AgentCall agent_;
  std::unique_ptr<OutputCall> output_;
};

std::shared_ptr<grpc::Channel> make_channel(const Ticket& ticket, const std::string& address) {
  grpc::SslCredentialsOptions tls;
  tls.pem_root_certs = ticket.authority;
  tls.pem_cert_chain = ticket.certificate;
  tls.pem_private_key = ticket.private_key;
  grpc::ChannelArguments arguments;
  arguments.SetSslTargetNameOverride(kControllerName);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // never one that is in use
  arguments.SetInt("grpc.min_reconnect_backoff_ms", 200);
  arguments.SetInt("grpc.max_reconnect_backoff_ms", 1000);
  arguments.SetMaxReceiveMessageSize(kMaxControlBytes);
  const char* family = address.front() == '[' ? "ipv6:" : "ipv4:";
  return grpc::CreateCustomChannel(family + address, grpc::SslCredentials(tls), arguments);
}

std::string host_of(const std::string& text) {
  std::string address;
  int port = 0;
  return split_port(text, &address, &port) ? address : text;
}

}  // namespace

Result<std::unique_ptr<ControlConnection>> ControlConnection::connect(
    const Ticket& ticket, std::chrono::seconds limit, std::chrono::milliseconds answer) {
  gpr_set_log_function([](gpr_log_func_args*) {});  // what matters is said by us
  const auto deadline = std::chrono::system_clock::now() + limit;
  const auto soon = [] { return std::chrono::system_clock::now() + kAnswer; };
  const auto connection_to =
      [&](const std::string& address,
          std::chrono::system_clock::time_point until) -> std::unique_ptr<ControlConnection> {
    const auto channel = make_channel(ticket, address);
    Result<UniqueFd> wake = host::make_event_fd();
    if (!wake.ok() || !channel->WaitForConnected(until)) return nullptr;
    return std::make_unique<GrpcControlConnection>(address, ticket.token, channel,
                                                   std::move(wake).value());
  };
  // Whether somebody listens there; gRPC would say no more than that it did not work.
  AnsweringAddresses found = find_answering(ticket.addresses, answer, kGrace);
  for (const std::string& address : found.answering) {
    if (auto connection = connection_to(address, soon())) return connection;
  }
  if (!found.answering.empty()) found = find_answering(ticket.addresses, answer, answer);
  // A network that has only just come up.
  while (found.answering.empty() && std::chrono::system_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    found = find_answering(ticket.addresses, answer, answer);
  }
  for (const std::string& address : found.answering) {
    const bool last = address == found.answering.back();
    if (auto connection = connection_to(address, last ? std::max(deadline, soon()) : soon()))
      return connection;
    found.table += "\n  " + address + "  somebody answers, but not as this job's controller" +
                   hint_of_large_packets(host_of(address));
  }
  return unavailable("the controller cannot be reached; tried:" + found.table);
}

}  // namespace rueda::launcher
