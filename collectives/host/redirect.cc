#include "collectives/host/redirect.h"

#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace rueda::host {
namespace {

#if defined(__x86_64__)
constexpr uint64_t kCalled = R_X86_64_JUMP_SLOT, kPointed = R_X86_64_GLOB_DAT;
#elif defined(__aarch64__)
constexpr uint64_t kCalled = R_AARCH64_JUMP_SLOT, kPointed = R_AARCH64_GLOB_DAT;
#else
constexpr uint64_t kCalled = ~uint64_t{0}, kPointed = ~uint64_t{0};
#endif

// What the dynamic linker needs to know of a library, as it lies in memory.
struct Tables {
  explicit Tables(const dl_phdr_info& info) : base(info.dlpi_addr) {
    for (int i = 0; i < info.dlpi_phnum; ++i) {
      if (info.dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
      const auto* entry = reinterpret_cast<const ElfW(Dyn)*>(base + info.dlpi_phdr[i].p_vaddr);
      for (; entry->d_tag != DT_NULL; ++entry) note(*entry);
    }
  }

  void note(const ElfW(Dyn) & entry) {
    const auto value = static_cast<uintptr_t>(entry.d_un.d_ptr);
    const uintptr_t address = value < base ? base + value : value;  // musl leaves them relative
    switch (entry.d_tag) {
      case DT_SYMTAB: symbols = reinterpret_cast<const ElfW(Sym)*>(address); break;
      case DT_STRTAB: names = reinterpret_cast<const char*>(address); break;
      case DT_JMPREL: calls = reinterpret_cast<const ElfW(Rela)*>(address); break;
      case DT_PLTRELSZ: call_bytes = value; break;
      case DT_RELA: others = reinterpret_cast<const ElfW(Rela)*>(address); break;
      case DT_RELASZ: other_bytes = value; break;
      default: break;
    }
  }

  std::vector<std::span<const ElfW(Rela)>> relocations() const {
    std::vector<std::span<const ElfW(Rela)>> all;
    if (calls != nullptr) all.emplace_back(calls, call_bytes / sizeof(ElfW(Rela)));
    if (others != nullptr) all.emplace_back(others, other_bytes / sizeof(ElfW(Rela)));
    return all;
  }

  uintptr_t base;
  const ElfW(Sym) * symbols = nullptr;
  const char* names = nullptr;
  const ElfW(Rela) * calls = nullptr, *others = nullptr;
  size_t call_bytes = 0, other_bytes = 0;
};

struct Search {
  const char* library;
  std::span<const Redirection> redirections;
  std::vector<std::pair<void**, void*>> entries;  // and what is to be in them
  std::vector<const char*> found;
  std::vector<std::pair<uintptr_t, uintptr_t>> sealed;  // read-only after relocation
};

int look(dl_phdr_info* info, size_t, void* data) {
  auto& search = *static_cast<Search*>(data);
  const char* name = std::strrchr(info->dlpi_name, '/');
  if (std::strcmp(name == nullptr ? info->dlpi_name : name + 1, search.library) != 0) return 0;
  const Tables tables(*info);
  if (tables.symbols == nullptr || tables.names == nullptr) return 1;
  for (const auto& relocations : tables.relocations()) {
    for (const ElfW(Rela) & relocation : relocations) {
      const uint64_t type = ELF64_R_TYPE(relocation.r_info);
      if (type != kCalled && type != kPointed) continue;
      const char* function = tables.names + tables.symbols[ELF64_R_SYM(relocation.r_info)].st_name;
      for (const Redirection& redirection : search.redirections) {
        if (std::strcmp(function, redirection.function) != 0) continue;
        search.entries.emplace_back(reinterpret_cast<void**>(tables.base + relocation.r_offset),
                                    redirection.to);
        search.found.push_back(redirection.function);
      }
    }
  }
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    if (info->dlpi_phdr[i].p_type != PT_GNU_RELRO) continue;
    const uintptr_t begin = tables.base + info->dlpi_phdr[i].p_vaddr;
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    search.sealed.emplace_back(begin, (begin + info->dlpi_phdr[i].p_memsz) / page * page);
  }
  return 1;
}

bool set_protection(uintptr_t page, int protection) {
  const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return mprotect(reinterpret_cast<void*>(page), bytes, protection) == 0;
}

}  // namespace

int redirect_calls(const char* library, std::span<const Redirection> redirections) {
  Search search{library, redirections, {}, {}, {}};
  dl_iterate_phdr(look, &search);
  for (const Redirection& redirection : redirections) {
    if (std::find(search.found.begin(), search.found.end(), redirection.function) ==
        search.found.end())
      return -1;
  }
  const auto page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  std::vector<uintptr_t> opened;
  const auto close_again = [&opened] {
    for (const uintptr_t page : opened) set_protection(page, PROT_READ);
  };
  for (const auto& [entry, to] : search.entries) {
    const auto at = reinterpret_cast<uintptr_t>(entry);
    const uintptr_t page = at / page_bytes * page_bytes;
    const bool is_sealed =
        std::any_of(search.sealed.begin(), search.sealed.end(),
                    [at](const auto& range) { return range.first <= at && at < range.second; });
    if (!is_sealed || std::find(opened.begin(), opened.end(), page) != opened.end()) continue;
    if (!set_protection(page, PROT_READ | PROT_WRITE)) {
      close_again();
      return -1;
    }
    opened.push_back(page);
  }
  for (const auto& [entry, to] : search.entries)
    std::atomic_ref<void*>(*entry).store(to, std::memory_order_release);
  close_again();
  return 0;
}

}  // namespace rueda::host
