#include "collectives/nccl/peer_info.h"

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

Status check_versions(const std::vector<PeerInfo>& infos, const std::vector<std::string>& names) {
  const auto differs = [&](const PeerInfo& info) { return info.version != infos.front().version; };
  if (std::none_of(infos.begin(), infos.end(), differs)) return {};
  std::string text;
  for (size_t i = 0; i < infos.size(); ++i)
    text += "\n  " + names[i] + ": NCCL " + version_text(infos[i].version) + ", " +
            text_of(infos[i].path);
  return failed_precondition("the ranks have different versions of NCCL:" + text +
                             "\ninstall the same one everywhere, or name it in RUEDA_NCCL_LIBRARY");
}

Status check_gpus(const std::vector<PeerInfo>& infos, const std::vector<std::string>& names) {
  std::map<std::string, int> users;
  for (const PeerInfo& info : infos) ++users[text_of(info.uuid)];
  const auto fewest = std::min_element(
      infos.begin(), infos.end(),
      [](const auto& a, const auto& b) { return a.ranks_per_gpu < b.ranks_per_gpu; });
  const int most = fewest->ranks_per_gpu;
  const auto is_shared = [&](const PeerInfo& info) { return users[text_of(info.uuid)] > most; };
  if (std::none_of(infos.begin(), infos.end(), is_shared)) return {};
  std::string text;
  for (size_t i = 0; i < infos.size(); ++i)
    text += "\n  " + names[i] + " -> " + text_of(infos[i].host) + " -> " + text_of(infos[i].uuid) +
            (is_shared(infos[i]) ? "  (shared)" : "");
  if (most > 1) {
    return failed_precondition("more than " + std::to_string(most) +
                               " ranks use the same GPU (RUEDA_RANKS_PER_GPU):" + text +
                               "\nstart fewer, or spread them evenly: "
                               "torch.cuda.set_device(hvd.local_rank() % "
                               "torch.cuda.device_count())");
  }
  return failed_precondition(
      "several ranks use the same GPU:" + text +
      "\ngive each rank its own: torch.cuda.set_device(hvd.local_rank()), or one visible GPU each "
      "(CUDA_VISIBLE_DEVICES); ruedarun --ranks-per-gpu N (RUEDA_RANKS_PER_GPU=N on all ranks) "
      "lets "
      "N ranks share each");
}

}  // namespace

void set_text(const std::string& text, char* to, size_t room) {
  const size_t length = std::min(text.size(), room - 1);
  std::memcpy(to, text.data(), length);
  to[length] = '\0';
}

Status check_peers(const std::vector<PeerInfo>& infos, const std::vector<std::string>& names) {
  for (size_t i = 0; i < infos.size(); ++i) {
    if (infos[i].magic != PeerInfo::kMagic)
      return {Code::kDataLoss, "damaged message from " + names[i] + " before NCCL's start"};
  }
  std::string failed;
  for (size_t i = 0; i < infos.size(); ++i) {
    if (infos[i].failed != 0) failed += "\n  " + names[i] + ": " + text_of(infos[i].path);
  }
  if (!failed.empty()) return failed_precondition("GPU tensors cannot be used on:" + failed);
  RUEDA_RETURN_IF_ERROR(check_versions(infos, names));
  return check_gpus(infos, names);
}

}  // namespace rueda::nccl
