#include "collectives/algorithms/host_exchange.h"

#include <cstring>
#include <utility>

#include "collectives/desc/parts.h"

namespace rueda::algorithms {

HostExchange::HostExchange(Plan plan, int64_t count)
    : plan_(std::move(plan)),
      count_(count),
      bytes_(static_cast<int64_t>(size_of(plan_.wire.value_or(plan_.dtype)))),
      arrived_(hosts() * static_cast<size_t>(mine() * bytes_)),
      inputs_(hosts()),
      arrivals_(is(Exchange::kBruck) ? bruck_rounds(hosts()) : 1) {
  if (plan_.wire) {
    narrow_.resize(static_cast<size_t>(count_ * bytes_));
    widened_.resize(hosts() * static_cast<size_t>(mine()));
  }
  for (Transfers& arrivals : arrivals_) arrivals.reserve(is(Exchange::kBruck) ? 1 : hosts() - 1);
  results_.reserve(hosts() - 1);
  sends_.reserve(2 * (hosts() - 1) + arrivals_.size());
}

int64_t HostExchange::begin_of(size_t host) const {
  if (!is(Exchange::kReduceScatterAllgather))
    return host <= plan_.host ? 0 : count_;  // the own is everything
  return shard_begin(count_, static_cast<Rank>(host), static_cast<Rank>(hosts()),
                     shard_unit(plan_.dtype));
}

void HostExchange::add_recv(Transfers* to, size_t host, std::byte* into, int64_t count,
                            transport::Tag tag) {
  if (count == 0) return;
  to->recv(plan_.transport, plan_.members[host], tag, {into, static_cast<size_t>(count * bytes_)});
}

void HostExchange::add_send(size_t host, const std::byte* from, int64_t count, transport::Tag tag) {
  if (count == 0) return;
  sends_.send(plan_.transport, plan_.members[host], tag,
              {from, static_cast<size_t>(count * bytes_)});
}

void HostExchange::post(transport::Tag tag) {
  tag_ = tag;
  stage_ = Stage::kPosted;
  round_ = 0;
  if (is(Exchange::kBruck)) {
    for (size_t round = 0; round < arrivals_.size(); ++round) {
      const BruckRound r = bruck_round(hosts(), round);
      const size_t from = (plan_.host + r.distance) % hosts();
      add_recv(&arrivals_[round], from, arrived(from), static_cast<int64_t>(r.blocks) * count_,
               tag_);
    }
    return;
  }
  for (size_t step = 1; step < hosts(); ++step) {
    const size_t peer = (plan_.host + hosts() - step) % hosts();
    add_recv(arrivals_.data(), peer, arrived(peer), mine(), tag_);
  }
}

void HostExchange::start(std::byte* data) {
  data_ = data;
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
      add_send(peer, travelling(), count_, tag_);
      continue;
    }
    const int64_t begin = begin_of(peer);
    const int64_t count = begin_of(peer + 1) - begin;
    add_send(peer, travelling() + begin * bytes_, count, tag_);
    // Into the memory that is being sent: the peer answers only when it has all of it.
    add_recv(&results_, peer, travelling() + begin * bytes_, count, tag_ + 1);
  }
}

void HostExchange::pass_on() {
  const BruckRound r = bruck_round(hosts(), round_);
  add_send((plan_.host + hosts() - r.distance) % hosts(), arrived(plan_.host),
           static_cast<int64_t>(r.blocks) * count_, tag_);
}

void HostExchange::combine() {
  const int64_t begin = begin_of(plan_.host);
  const auto elements = static_cast<size_t>(mine());
  if (elements == 0) return;
  std::byte* own = data_ + begin * static_cast<int64_t>(size_of(plan_.dtype));
  for (size_t host = 0; host < hosts(); ++host) {
    const std::byte* from = arrived(host);
    // Everybody has to see the same contributions, the own one rounded too.
    if (host == plan_.host) from = plan_.wire ? narrow_.data() + begin * bytes_ : own;
    if (plan_.wire) {
      kernels::convert_to_f32(*plan_.wire, from, widened_.data() + host * elements, elements);
      from = reinterpret_cast<const std::byte*>(widened_.data() + host * elements);
    }
    inputs_[host] = from;
  }
  kernels::reduce(plan_.dtype, plan_.op, inputs_, own, elements, plan_.finish);
  if (plan_.wire) {
    kernels::convert_from_f32(*plan_.wire, reinterpret_cast<const float*>(own),
                              narrow_.data() + begin * bytes_, elements);
  }
  if (!is(Exchange::kReduceScatterAllgather)) return;
  for (size_t step = 1; step < hosts(); ++step) {
    add_send((plan_.host + step) % hosts(), travelling() + begin * bytes_, mine(), tag_ + 1);
  }
}

void HostExchange::fail(const Status& status) {
  status_ = status;
  stage_ = Stage::kDone;
}

// True if something happened; then all is combined, or a round is passed on, or it has failed.
bool HostExchange::finish_gathering() {
  if (round_ < arrivals_.size()) {
    if (!arrivals_[round_].ready()) return false;
    const Status status = arrivals_[round_].take();
    if (!status.ok()) {
      fail(status);
      return true;
    }
    if (++round_ < arrivals_.size()) {
      pass_on();
      return true;
    }
  }
  // The result goes where a direct contribution leaves from.
  if (is(Exchange::kDirect) && !sends_.ready()) return false;
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
  if (!results_.ready() || !sends_.ready()) return moved;
  Status status = results_.take();
  if (status.ok()) status = sends_.take();
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
