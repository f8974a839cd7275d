// Finds out whether Linux gives a process huge pages (cpu_info.h).
#include <optional>
#include <string>
#include <string_view>

#include "cpu_info.h"
#include "text_files.h"

#if defined(__linux__)
#include <sys/prctl.h>
#endif

namespace pellucid {

#if defined(__linux__)

std::optional<bool> huge_pages(const std::string& root) {
  if (root.empty() && prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1) return false;
  // The choice among several stands in brackets: "always [madvise] never".
  const std::string text =
      read_text_file(root + "/sys/kernel/mm/transparent_hugepage/enabled").value_or("");
  for (const std::string_view choice : split(trim(text), ' ')) {
    if (choice == "[never]") return false;
    if (choice == "[madvise]" || choice == "[always]") return true;
  }
  return std::nullopt;
}

#else

std::optional<bool> huge_pages(const std::string&) { return std::nullopt; }

#endif

}  // namespace pellucid
