// What is known of an operation before any post is read, the same on all ranks: how its data
// travels and how much memory that takes.
#include <algorithm>
#include <numeric>

#include "collectives/base/check.h"
#include "collectives/shm/channel_state.h"

namespace rueda::shm {
namespace {

bool reduces(CollectiveKind kind) {
  return kind == CollectiveKind::kAllreduce || kind == CollectiveKind::kReducescatter;
}

void set_begins(ChannelOp::Progress* p, size_t count, auto length) {
  p->begins.assign(1, 0);
  for (size_t i = 0; i < count; ++i) p->begins.push_back(p->begins.back() + length(i));
}

// Bytes that every rank contributes; what small operations have in their posts.
void count_bytes(const ChannelOp& op, size_t size, ChannelOp::Progress* p) {
  const auto part_count = [&](size_t i) { return op.tensors()[i].count; };
  p->payload.assign(size, 0);
  switch (op.desc().kind) {
    case CollectiveKind::kAllreduce:
    case CollectiveKind::kBroadcast: {
      set_begins(p, op.tensors().size(), part_count);
      p->bytes = p->begins.back() * p->element;
      const auto total = static_cast<size_t>(p->bytes);
      if (op.desc().kind == CollectiveKind::kAllreduce) {
        p->payload.assign(size, total);
      } else {
        p->payload[static_cast<size_t>(op.desc().root)] = total;
      }
      break;
    }
    case CollectiveKind::kReducescatter:
      RUEDA_CHECK(op.tensors().size() == 1 && op.desc().counts.size() == size,
                  "a shard for each rank");
      set_begins(p, size, [&](size_t rank) { return op.desc().counts[rank]; });
      p->bytes = p->begins.back() * p->element;
      p->payload.assign(size, static_cast<size_t>(p->bytes));
      break;
    case CollectiveKind::kAllgather:
      RUEDA_CHECK(op.desc().counts.size() == op.tensors().size() * size,
                  "a block for each part and rank");
      for (size_t i = 0; i < op.desc().counts.size(); ++i)
        p->payload[i % size] += static_cast<size_t>(op.desc().counts[i]);
      p->bytes = std::accumulate(op.desc().counts.begin(), op.desc().counts.end(), int64_t{0});
      break;
    case CollectiveKind::kAlltoall:
      RUEDA_CHECK(op.tensors().size() == 1 && op.desc().counts.size() == size * size,
                  "a block for each pair");
      for (size_t i = 0; i < op.desc().counts.size(); ++i)
        p->payload[i / size] += static_cast<size_t>(op.desc().counts[i]);
      p->bytes = std::accumulate(op.desc().counts.begin(), op.desc().counts.end(), int64_t{0});
      break;
    case CollectiveKind::kBarrier: break;  // ranks meet by their posts
    default: RUEDA_CHECK(false, "not a collective of channels");
  }
}

// An allgather's or alltoall's result does not fit a last-level cache together with what it comes
// from; a broadcast's by itself: its root writes none.
bool moves_much(const ChannelOp& op, const ChannelOp::Progress& p, size_t size) {
  switch (op.desc().kind) {
    case CollectiveKind::kAllgather: return 2 * p.bytes >= kStreamBytes;
    case CollectiveKind::kAlltoall: return 2 * p.bytes >= kStreamBytes * static_cast<int64_t>(size);
    case CollectiveKind::kBroadcast: return p.bytes >= kStreamBytes;
    default: return false;
  }
}

void choose_listed(const ChannelOp& op, size_t size, ChannelOp::Progress* p) {
  p->listed.clear();
  for (size_t i = 0; i < op.tensors().size() && p->listed.size() < kListed; ++i) {
    int64_t bytes = op.tensors()[i].count * p->element;
    if (op.desc().kind == CollectiveKind::kAllgather) {
      const auto row = op.desc().counts.begin() + static_cast<ptrdiff_t>(i * size);
      bytes = *std::max_element(row, row + static_cast<ptrdiff_t>(size));
    }
    const bool single = op.desc().kind == CollectiveKind::kReducescatter ||
                        op.desc().kind == CollectiveKind::kAlltoall;
    if (single || bytes >= kDirectBytes) p->listed.push_back(static_cast<uint32_t>(i));
  }
}

}  // namespace

void Channel::State::prepare(ChannelOp* op) {
  ChannelOp::Progress& p = op->progress();
  p.element = reduces(op->desc().kind) ? static_cast<int64_t>(size_of(op->desc().dtype)) : 1;
  count_bytes(*op, size, &p);
  const auto largest = static_cast<int64_t>(*std::max_element(p.payload.begin(), p.payload.end()));
  const auto all = std::accumulate(p.payload.begin(), p.payload.end(), size_t{0});
  const bool little = all <= static_cast<size_t>(kRedundantBytes);
  if (largest <= static_cast<int64_t>(post::kLinePayload) || (little && largest <= kInlineBytes)) {
    p.size = Size::kInline;
    return;
  }
  if (little && largest <= static_cast<int64_t>(host::PostCell::kBlockBytes)) {
    p.size = Size::kBlock;
    return;
  }
  p.size = Size::kLarge;
  p.streams = moves_much(*op, p, size);
  choose_listed(*op, size, &p);
  const size_t listed = p.listed.size();
  p.payload.assign(size, 16 * listed);
  p.places.assign(size * listed, {});
  p.combines.reserve(listed);
  p.fetches.reserve(std::max(listed, size_t{1}) * size);
  const bool gathers = op->desc().kind == CollectiveKind::kAllgather ||
                       op->desc().kind == CollectiveKind::kBroadcast;
  p.staged.resize(gathers ? size : 1);
  for (PartList& list : p.staged) list.reserve(op->tensors().size());
  p.through_staging.assign(size, 0);
  if (reduces(op->desc().kind)) {
    const int64_t block = op->desc().protocol == ShmProtocol::kCma ? kCmaPiece : kBlockBytes;
    scratch.resize(std::max(scratch.size(), (size + 1) * static_cast<size_t>(block)));
  }
}

}  // namespace rueda::shm
