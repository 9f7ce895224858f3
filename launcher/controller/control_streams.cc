#include "launcher/controller/control_streams.h"

#include <vector>

#include "launcher/controller/control_hub.h"

namespace rueda::launcher {

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

}  // namespace rueda::launcher
