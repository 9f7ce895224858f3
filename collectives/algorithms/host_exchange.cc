#include "collectives/algorithms/host_exchange.h"

#include <cstring>
#include <utility>

#include "collectives/desc/parts.h"

namespace rueda::algorithms {

HostExchange::HostExchange(Plan plan, std::byte* data, int64_t count)
    : plan_(std::move(plan)), data_(data), count_(count) {
  bytes_ = static_cast<int64_t>(size_of(plan_.wire.value_or(plan_.dtype)));
}

int64_t HostExchange::begin_of(size_t host) const {
  if (!is(Exchange::kReduceScatterAllgather))
    return host <= plan_.host ? 0 : count_;  // the own is everything
  return shard_begin(count_, static_cast<Rank>(host), static_cast<Rank>(hosts()),
                     shard_unit(plan_.dtype));
}

void HostExchange::add_recv(Transfers* to, size_t host, std::byte* into, int64_t count,
                            uint64_t tag) {
  if (count == 0) return;
  to->add(
      plan_.transport->recv(plan_.members[host], tag, {into, static_cast<size_t>(count * bytes_)}));
}

void HostExchange::add_send(size_t host, const std::byte* from, int64_t count, uint64_t tag) {
  if (count == 0) return;
  sends_.add(
      plan_.transport->send(plan_.members[host], tag, {from, static_cast<size_t>(count * bytes_)}));
}

void HostExchange::post() {
  if (stage_ != Stage::kNew) return;
  stage_ = Stage::kPosted;
  if (plan_.wire) narrow_.resize(static_cast<size_t>(count_ * bytes_));
  arrived_.resize(hosts() * static_cast<size_t>(mine() * bytes_));
  if (is(Exchange::kBruck)) {
    arrivals_.resize(bruck_rounds(hosts()));
    for (size_t round = 0; round < arrivals_.size(); ++round) {
      const BruckRound r = bruck_round(hosts(), round);
      const size_t from = (plan_.host + r.distance) % hosts();
      add_recv(&arrivals_[round], from, arrived(from), static_cast<int64_t>(r.blocks) * count_,
               plan_.tag);
    }
    return;
  }
  arrivals_.resize(1);
  for (size_t step = 1; step < hosts(); ++step) {
    const size_t peer = (plan_.host + hosts() - step) % hosts();
    add_recv(arrivals_.data(), peer, arrived(peer), mine(), plan_.tag);
  }
}

void HostExchange::start() {
  post();
  stage_ = Stage::kGathering;
  if (plan_.wire) {
    kernels::convert_from_f32(*plan_.wire, reinterpret_cast<const float*>(data_), narrow_.data(),
                              static_cast<size_t>(count_));
  }
  if (is(Exchange::kBruck)) {
    const auto bytes = static_cast<size_t>(count_ * bytes_);
    if (bytes > 0) std::memcpy(arrived(plan_.host), travelling(), bytes);
    if (!arrivals_.empty()) pass_on();
    return;
  }
  for (size_t step = 1; step < hosts(); ++step) {
    const size_t peer = (plan_.host + step) % hosts();
    if (is(Exchange::kDirect)) {
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

void HostExchange::pass_on() {
  const BruckRound r = bruck_round(hosts(), round_);
  add_send((plan_.host + hosts() - r.distance) % hosts(), arrived(plan_.host),
           static_cast<int64_t>(r.blocks) * count_, plan_.tag);
}

void HostExchange::combine() {
  const int64_t begin = begin_of(plan_.host);
  const auto elements = static_cast<size_t>(mine());
  if (elements == 0) return;
  std::byte* own = data_ + begin * static_cast<int64_t>(size_of(plan_.dtype));
  std::vector<const std::byte*> inputs;
  std::vector<float> widened;
  if (plan_.wire) widened.resize(hosts() * elements);
  for (size_t host = 0; host < hosts(); ++host) {
    const std::byte* from = arrived(host);
    // Everybody has to see the same contributions, the own one rounded too.
    if (host == plan_.host) from = plan_.wire ? narrow_.data() + begin * bytes_ : own;
    if (plan_.wire) {
      kernels::convert_to_f32(*plan_.wire, from, widened.data() + host * elements, elements);
      from = reinterpret_cast<const std::byte*>(widened.data() + host * elements);
    }
    inputs.push_back(from);
  }
  kernels::reduce(plan_.dtype, plan_.op, inputs, own, elements, plan_.finish);
  if (plan_.wire) {
    kernels::convert_from_f32(*plan_.wire, reinterpret_cast<const float*>(own),
                              narrow_.data() + begin * bytes_, elements);
  }
  if (!is(Exchange::kReduceScatterAllgather)) return;
  for (size_t step = 1; step < hosts(); ++step) {
    add_send((plan_.host + step) % hosts(), travelling() + begin * bytes_, mine(), plan_.tag + 1);
  }
}

void HostExchange::fail(const Status& status) {
  status_ = status;
  stage_ = Stage::kDone;
}

// True if something happened; then all is combined, or a round is passed on, or it has failed.
bool HostExchange::finish_gathering() {
  if (round_ < arrivals_.size()) {
    auto arrived = arrivals_[round_].finished();
    if (!arrived.ready()) return false;
    const Status status = arrived.await_resume();
    if (!status.ok()) {
      fail(status);
      return true;
    }
    if (++round_ < arrivals_.size()) {
      pass_on();
      return true;
    }
  }
  // The result goes where a one-shot contribution leaves from.
  if (is(Exchange::kDirect) && !sends_.finished().ready()) return false;
  combine();
  stage_ = Stage::kSpreading;
  return true;
}

bool HostExchange::step() {
  bool moved = false;
  while (stage_ == Stage::kGathering) {
    if (!finish_gathering()) return moved;
    moved = true;
  }
  if (stage_ != Stage::kSpreading) return moved;
  auto results = results_.finished();
  auto sends = sends_.finished();
  if (!results.ready() || !sends.ready()) return moved;
  Status status = results.await_resume();
  if (status.ok()) status = sends.await_resume();
  if (!status.ok()) {
    fail(status);
    return true;
  }
  if (plan_.wire) {
    kernels::convert_to_f32(*plan_.wire, narrow_.data(), reinterpret_cast<float*>(data_),
                            static_cast<size_t>(count_));
  }
  stage_ = Stage::kDone;
  return true;
}

}  // namespace rueda::algorithms
