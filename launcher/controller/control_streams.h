// The calls that agents make to the controller, as gRPC's reactors: what they bring goes to the
// Hub, what is for an agent is written in its order. gRPC's threads.
#pragma once

#include <grpcpp/grpcpp.h>
#include <proto/control.grpc.pb.h>

#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "launcher/controller/certificates.h"
#include "launcher/hosts/wire.h"

namespace rueda::launcher {

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

}  // namespace rueda::launcher
