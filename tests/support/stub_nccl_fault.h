// Faults of the stub of NCCL, for threads as ranks: STUB_NCCL_FAULT="ncclAllReduce:1:2:hang" is the
// second ncclAllReduce of rank 1 (-1: of any) in this process. error: the call fails. async: its
// work sets an asynchronous error and never ends. hang: it never ends. slow: it ends 300 ms late.
// Each other text counts anew.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>

namespace rueda::stub {

enum class Fault { kNone, kError, kAsync, kHang, kSlow };

inline Fault fault(const std::string& call, int rank) {
  static std::mutex mutex;
  static std::string last;
  static int count = 0;
  const char* const text = std::getenv("STUB_NCCL_FAULT");
  if (text == nullptr) return Fault::kNone;
  char name[64] = "";
  char how[16] = "";
  int whose = -1;
  int nth = 1;
  if (std::sscanf(text, "%63[^:]:%d:%d:%15s", name, &whose, &nth, how) != 4) std::abort();
  const std::lock_guard lock(mutex);
  if (last != text) count = 0;
  last = text;
  if (call != name || (whose >= 0 && whose != rank) || ++count != nth) return Fault::kNone;
  if (how[0] == 's') return Fault::kSlow;
  return how[0] == 'e' ? Fault::kError : how[0] == 'a' ? Fault::kAsync : Fault::kHang;
}

}  // namespace rueda::stub
