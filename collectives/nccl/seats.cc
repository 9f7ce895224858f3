#include "collectives/nccl/seats.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "collectives/nccl/library.h"

namespace rueda::nccl {
namespace {

// Of a peer: the zero at the end may be missing.
template <size_t kRoom>
std::string text_of(const char (&text)[kRoom]) {
  return {text, strnlen(text, kRoom)};
}

Status check_versions(const std::vector<Seat>& seats, const std::vector<std::string>& names) {
  const auto differs = [&](const Seat& seat) { return seat.version != seats.front().version; };
  if (std::none_of(seats.begin(), seats.end(), differs)) return {};
  std::string text;
  for (size_t i = 0; i < seats.size(); ++i)
    text += "\n  " + names[i] + ": NCCL " + version_text(seats[i].version) + ", " +
            text_of(seats[i].path);
  return failed_precondition("the ranks have different versions of NCCL:" + text +
                             "\ninstall the same one everywhere, or name it in RUEDA_NCCL_LIBRARY");
}

Status check_gpus(const std::vector<Seat>& seats, const std::vector<std::string>& names) {
  std::map<std::string, int> users;
  for (const Seat& seat : seats) ++users[text_of(seat.uuid)];
  const auto is_shared = [&](const Seat& seat) { return users[text_of(seat.uuid)] > 1; };
  if (std::none_of(seats.begin(), seats.end(), is_shared)) return {};
  const auto allows = [](const Seat& seat) { return seat.shares_gpu != 0; };
  if (std::all_of(seats.begin(), seats.end(), allows)) return {};
  std::string text;
  for (size_t i = 0; i < seats.size(); ++i)
    text += "\n  " + names[i] + " -> " + text_of(seats[i].host) + " -> " + text_of(seats[i].uuid) +
            (is_shared(seats[i]) ? "  (shared)" : "");
  return failed_precondition(
      "several ranks use the same GPU:" + text +
      "\ngive each rank its own: torch.cuda.set_device(hvd.local_rank()), or one visible GPU each "
      "(CUDA_VISIBLE_DEVICES); RUEDA_ALLOW_SHARED_GPU=1 on all ranks allows it for tests, where "
      "NCCL "
      "does (NCCL_MULTI_RANK_GPU_ENABLE=1)");
}

}  // namespace

void set_text(const std::string& text, char* to, size_t room) {
  const size_t length = std::min(text.size(), room - 1);
  std::memcpy(to, text.data(), length);
  to[length] = '\0';
}

Status check_seats(const std::vector<Seat>& seats, const std::vector<std::string>& names) {
  for (size_t i = 0; i < seats.size(); ++i) {
    if (seats[i].magic != Seat::kMagic)
      return {rueda::Code::kDataLoss, "damaged message from " + names[i] + " before NCCL's start"};
  }
  std::string failed;
  for (size_t i = 0; i < seats.size(); ++i) {
    if (seats[i].failed != 0) failed += "\n  " + names[i] + ": " + text_of(seats[i].path);
  }
  if (!failed.empty()) return failed_precondition("GPU tensors cannot be used on:" + failed);
  RUEDA_RETURN_IF_ERROR(check_versions(seats, names));
  return check_gpus(seats, names);
}

}  // namespace rueda::nccl
