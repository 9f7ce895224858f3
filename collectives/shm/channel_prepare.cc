// What is known of a job before any post is read, the same on all ranks: how its data travels and
// how much memory that takes.
#include <algorithm>
#include <numeric>

#include "collectives/base/check.h"
#include "collectives/shm/channel_state.h"

namespace rueda::shm {
namespace {

bool reduces(CollectiveKind kind) {
  return kind == CollectiveKind::kAllreduce || kind == CollectiveKind::kReducescatter;
}

void set_begins(Job::Progress* p, size_t count, auto length) {
  p->begins.assign(1, 0);
  for (size_t i = 0; i < count; ++i) p->begins.push_back(p->begins.back() + length(i));
}

// Bytes that every rank contributes; what small jobs have in their posts.
void count_bytes(const Job& job, size_t size, Job::Progress* p) {
  const auto part_count = [&](size_t i) { return job.parts[i].count; };
  p->payload.assign(size, 0);
  switch (job.kind) {
    case CollectiveKind::kAllreduce:
    case CollectiveKind::kBroadcast: {
      set_begins(p, job.parts.size(), part_count);
      p->bytes = p->begins.back() * p->element;
      const auto total = static_cast<size_t>(p->bytes);
      if (job.kind == CollectiveKind::kAllreduce) {
        p->payload.assign(size, total);
      } else {
        p->payload[static_cast<size_t>(job.root)] = total;
      }
      break;
    }
    case CollectiveKind::kReducescatter:
      RUEDA_CHECK(job.parts.size() == 1 && job.counts.size() == size, "a shard for each rank");
      set_begins(p, size, [&](size_t rank) { return job.counts[rank]; });
      p->bytes = p->begins.back() * p->element;
      p->payload.assign(size, static_cast<size_t>(p->bytes));
      break;
    case CollectiveKind::kAllgather:
      RUEDA_CHECK(job.counts.size() == job.parts.size() * size, "a block for each part and rank");
      for (size_t i = 0; i < job.counts.size(); ++i)
        p->payload[i % size] += static_cast<size_t>(job.counts[i]);
      p->bytes = std::accumulate(job.counts.begin(), job.counts.end(), int64_t{0});
      break;
    case CollectiveKind::kAlltoall:
      RUEDA_CHECK(job.parts.size() == 1 && job.counts.size() == size * size,
                  "a block for each pair");
      for (size_t i = 0; i < job.counts.size(); ++i)
        p->payload[i / size] += static_cast<size_t>(job.counts[i]);
      p->bytes = std::accumulate(job.counts.begin(), job.counts.end(), int64_t{0});
      break;
    default: RUEDA_CHECK(false, "not a collective of channels");
  }
}

void choose_listed(const Job& job, size_t size, Job::Progress* p) {
  p->listed.clear();
  for (size_t i = 0; i < job.parts.size() && p->listed.size() < kListed; ++i) {
    int64_t bytes = job.parts[i].count * p->element;
    if (job.kind == CollectiveKind::kAllgather) {
      const auto row = job.counts.begin() + static_cast<ptrdiff_t>(i * size);
      bytes = *std::max_element(row, row + static_cast<ptrdiff_t>(size));
    }
    const bool single =
        job.kind == CollectiveKind::kReducescatter || job.kind == CollectiveKind::kAlltoall;
    if (single || bytes >= kDirectBytes) p->listed.push_back(static_cast<uint32_t>(i));
  }
}

}  // namespace

void Channel::State::prepare(Job* job) {
  if (job->progress == nullptr) job->progress = std::make_unique<Job::Progress>();
  Job::Progress& p = *job->progress;
  p.element = reduces(job->kind) ? static_cast<int64_t>(size_of(job->dtype)) : 1;
  count_bytes(*job, size, &p);
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
  choose_listed(*job, size, &p);
  const size_t listed = p.listed.size();
  p.payload.assign(size, 16 * listed);
  p.places.assign(size * listed, {});
  p.combines.reserve(listed);
  p.fetches.reserve(std::max(listed, size_t{1}) * size);
  const bool gathers =
      job->kind == CollectiveKind::kAllgather || job->kind == CollectiveKind::kBroadcast;
  p.staged.resize(gathers ? size : 1);
  for (PartList& list : p.staged) list.reserve(job->parts.size());
  p.through_staging.assign(size, 0);
  if (reduces(job->kind)) {
    const int64_t block = job->protocol == Protocol::kCma ? kCmaPiece : kBlockBytes;
    scratch.resize(std::max(scratch.size(), (size + 1) * static_cast<size_t>(block)));
  }
}

}  // namespace rueda::shm
