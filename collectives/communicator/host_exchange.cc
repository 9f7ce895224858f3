#include "collectives/communicator/host_exchange.h"

#include <utility>

#include "collectives/communicator/parts.h"

namespace rueda::communicator {

HostExchange::HostExchange(Plan plan, std::byte* data, int64_t count)
    : plan_(std::move(plan)), data_(data), count_(count) {
  bytes_ = static_cast<int64_t>(size_of(plan_.wire.value_or(plan_.dtype)));
}

int64_t HostExchange::begin_of(size_t host) const {
  if (plan_.one_shot) return host <= plan_.host ? 0 : count_;  // the own share is everything
  return share_begin(count_, static_cast<Rank>(host), static_cast<Rank>(hosts()),
                     share_unit(plan_.dtype));
}

void HostExchange::add_recv(Transfers* to, size_t host, std::byte* into, int64_t count,
                            uint64_t tag) {
  if (count == 0) return;
  to->add(plan_.transport->recv(plan_.members[host], tag,
                                {into, static_cast<size_t>(count * bytes_)}));
}

void HostExchange::add_send(size_t host, const std::byte* from, int64_t count, uint64_t tag) {
  if (count == 0) return;
  sends_.add(plan_.transport->send(plan_.members[host], tag,
                                   {from, static_cast<size_t>(count * bytes_)}));
}

void HostExchange::post() {
  if (stage_ != Stage::kNew) return;
  stage_ = Stage::kPosted;
  if (plan_.wire) narrow_.resize(static_cast<size_t>(count_ * bytes_));
  const int64_t mine = begin_of(plan_.host + 1) - begin_of(plan_.host);
  arrived_.resize(hosts() * static_cast<size_t>(mine * bytes_));
  for (size_t step = 1; step < hosts(); ++step) {
    const size_t peer = (plan_.host + hosts() - step) % hosts();
    add_recv(&contributions_, peer,
             arrived_.data() + peer * static_cast<size_t>(mine * bytes_), mine, plan_.tag);
  }
}

void HostExchange::start() {
  post();
  stage_ = Stage::kCombining;
  if (plan_.wire) {
    kernels::convert_from_f32(*plan_.wire, reinterpret_cast<const float*>(data_), narrow_.data(),
                              static_cast<size_t>(count_));
  }
  for (size_t step = 1; step < hosts(); ++step) {
    const size_t peer = (plan_.host + step) % hosts();
    if (plan_.one_shot) {
      add_send(peer, travelling(), count_, plan_.tag);
      continue;
    }
    const int64_t begin = begin_of(peer);
    const int64_t count = begin_of(peer + 1) - begin;
    add_send(peer, travelling() + begin * bytes_, count, plan_.tag);
    // Into the memory that is being sent: the peer answers only when it has all of it.
    add_recv(&results_, peer, travelling() + begin * bytes_, count, plan_.tag + 1);
  }
}

void HostExchange::combine() {
  const int64_t begin = begin_of(plan_.host);
  const int64_t count = begin_of(plan_.host + 1) - begin;
  const auto elements = static_cast<size_t>(count);
  if (count == 0) return;
  std::byte* own = data_ + begin * static_cast<int64_t>(size_of(plan_.dtype));
  std::vector<const std::byte*> inputs;
  std::vector<float> widened;
  if (plan_.wire) widened.resize(hosts() * elements);
  // One-shot: everybody has to see the same contributions, the own one rounded too.
  for (size_t host = 0; host < hosts(); ++host) {
    const bool is_own = host == plan_.host;
    const std::byte* from = arrived_.data() + host * elements * static_cast<size_t>(bytes_);
    if (is_own) from = plan_.wire ? narrow_.data() + begin * bytes_ : own;
    if (plan_.wire) {
      kernels::convert_to_f32(*plan_.wire, from, widened.data() + host * elements, elements);
      from = reinterpret_cast<const std::byte*>(widened.data() + host * elements);
    }
    inputs.push_back(from);
  }
  kernels::reduce(plan_.dtype, plan_.op, inputs, own, elements, plan_.finish);
  if (plan_.one_shot) return;
  if (plan_.wire) {
    kernels::convert_from_f32(*plan_.wire, reinterpret_cast<const float*>(own),
                              narrow_.data() + begin * bytes_, elements);
  }
  for (size_t step = 1; step < hosts(); ++step) {
    add_send((plan_.host + step) % hosts(), travelling() + begin * bytes_, count, plan_.tag + 1);
  }
}

void HostExchange::fail(const Status& status) {
  status_ = status;
  stage_ = Stage::kDone;
}

bool HostExchange::step() {
  if (stage_ == Stage::kCombining) {
    auto arrived = contributions_.finished();
    if (!arrived.ready()) return false;
    // The result goes where the contribution leaves from.
    if (plan_.one_shot && !sends_.finished().ready()) return false;
    const Status status = arrived.await_resume();
    if (!status.ok()) {
      fail(status);
      return true;
    }
    combine();
    stage_ = Stage::kSpreading;
  }
  if (stage_ != Stage::kSpreading) return false;
  auto results = results_.finished();
  auto sends = sends_.finished();
  if (!results.ready() || !sends.ready()) return false;
  Status status = results.await_resume();
  if (status.ok()) status = sends.await_resume();
  if (!status.ok()) {
    fail(status);
    return true;
  }
  if (plan_.wire && !plan_.one_shot) {
    kernels::convert_to_f32(*plan_.wire, narrow_.data(), reinterpret_cast<float*>(data_),
                            static_cast<size_t>(count_));
  }
  stage_ = Stage::kDone;
  return true;
}

}  // namespace rueda::communicator
